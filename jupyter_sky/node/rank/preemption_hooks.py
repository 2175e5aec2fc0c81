"""Calls the user's preemption hooks when a node is about to be taken away."""

from __future__ import annotations

import sys
import threading
import traceback

from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.transport import preemption
from jupyter_sky.transport.protocol.rank_messages import LeavingCommand

_PAUSE_WITHIN = 1.0  # seconds; inside a collective, the main thread does not pause


def run_hooks(rank: int, command: LeavingCommand, interrupts: Interrupts) -> None:
    """Call the hooks of this rank in their own thread, while the main thread is paused."""
    ranks = tuple(command["ranks"])
    notice = preemption.Interruption(command["kind"], command["at"], ranks, rank in ranks)
    preemption.notices.append(notice)
    hooks = list(preemption.hooks)
    if not hooks:
        return
    done = threading.Event()

    def call_hooks() -> None:
        paused.wait(_PAUSE_WITHIN)
        try:
            for hook in hooks:
                try:
                    preemption.call(hook, notice)
                except BaseException:
                    traceback.print_exc()
            sys.stdout.flush()
        finally:
            done.set()

    # Paused, so that the variables that a hook saves are consistent.
    paused = interrupts.pause(done)
    threading.Thread(target=call_hooks, name="sky-preemption", daemon=True).start()
