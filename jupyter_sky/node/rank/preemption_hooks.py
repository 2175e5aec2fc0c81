"""What a rank does when a node is about to be taken away: it calls what the person wants then."""

from __future__ import annotations

import sys
import threading
import traceback

from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.transport import preemption
from jupyter_sky.transport.frames import Message

_HEARD_WITHIN = 1.0  # seconds; inside of a collective the main thread hears nothing


def say(rank: int, message: Message, interrupts: Interrupts) -> None:
    """Call the hooks of this rank, in a thread of their own, while its main thread stands still."""
    hooks = list(preemption.hooks)
    if not hooks:
        return
    ranks = tuple(message["ranks"])
    notice = preemption.Interruption(message["kind"], message["at"], ranks, rank in ranks)
    done = threading.Event()

    def call() -> None:
        still.wait(_HEARD_WITHIN)
        try:
            for hook in hooks:
                try:
                    preemption.call(hook, notice)
                except BaseException:
                    traceback.print_exc()
            sys.stdout.flush()
        finally:
            done.set()

    # What is saved should be of one moment.
    still = interrupts.stand_still(done)
    threading.Thread(target=call, name="sky-farewell", daemon=True).start()
