"""Calls the user's preemption hooks when nodes are about to be taken away."""

from __future__ import annotations

import threading
import traceback
from dataclasses import replace

from jupyter_sky.node.rank import streams
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.transport import preemption
from jupyter_sky.transport.preemption import Interruption
from jupyter_sky.transport.protocol.rank_messages import LeavingCommand

_PAUSE_WITHIN = 1.0  # seconds; inside a collective, the main thread does not pause


class PreemptionHooks:
    """Calls the hooks of a rank, one after the other, while its main thread is paused.

    Where all nodes of a cluster are taken away together, each says so for itself: what comes while
    hooks run is joined, and is one notice more to them.

    Parameters
    ----------
    rank
        The number of the rank.
    interrupts
        What pauses its main thread.
    """

    def __init__(self, rank: int, interrupts: Interrupts) -> None:
        self._rank = rank
        self._interrupts = interrupts
        self._lock = threading.Lock()
        self._waiting: list[Interruption] = []
        self._is_calling = False

    def announce(self, command: LeavingCommand) -> None:
        """Have the hooks called in a thread of their own; if they are just being called, again."""
        ranks = tuple(command["ranks"])
        notice = Interruption(command["kind"], command["at"], ranks, self._rank in ranks)
        preemption.notices.append(notice)
        if not preemption.hooks:
            return
        with self._lock:
            self._waiting = _joined(self._waiting, notice)
            if self._is_calling:
                return
            self._is_calling = True
        threading.Thread(target=self._call_hooks, name="sky-preemption", daemon=True).start()

    def _call_hooks(self) -> None:
        former = threading.Event()
        try:
            while notice := self._next():
                done = threading.Event()
                # Paused, so that the variables that a hook saves are consistent: for each notice
                # anew, as no pause lasts for ever, and before the former one ends.
                self._interrupts.pause(done).wait(_PAUSE_WITHIN)
                former.set()
                former = done
                for hook in list(preemption.hooks):
                    try:
                        preemption.call(hook, notice)
                    except BaseException:
                        traceback.print_exc()
                streams.flush()
        except BaseException:
            with self._lock:
                self._is_calling = False
            raise
        finally:
            former.set()

    def _next(self) -> Interruption | None:
        """Return what the hooks are to be called with next, if anything."""
        with self._lock:
            self._is_calling = bool(self._waiting)
            return self._waiting.pop(0) if self._waiting else None


def _joined(waiting: list[Interruption], notice: Interruption) -> list[Interruption]:
    """Return notices with one more, which is joined with one of the same kind."""
    alike = next((each for each in waiting if each.kind == notice.kind), None)
    if alike is None:
        return [*waiting, notice]
    times = [each.at for each in (alike, notice) if each.at is not None]
    joined = replace(
        alike,
        at=min(times, default=None),
        ranks=tuple(sorted({*alike.ranks, *notice.ranks})),
        here=alike.here or notice.here,
    )
    return [joined if each is alike else each for each in waiting]
