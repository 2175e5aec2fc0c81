"""Stopping what ranks do, without losing the ranks.

What is wanted: Stop ends a run on all its ranks within a second or two, and all variables on them
are kept. The user's code may react to the ``KeyboardInterrupt``, for example by saving a
checkpoint. No rank stays behind, whatever it is doing.

What does not work:

- SIGINT alone. A rank that is blocked in a collective waits in C++ for its peers, and Python runs
  no signal handler until that call returns. If one rank has failed, it never does.
- Breaking the collective at once. A rank that merely computes reacts to SIGINT by itself. Breaking
  its process group would require a new group for the whole cluster, and breaking it under a rank
  that is saving a checkpoint would damage the checkpoint.
- SIGKILL. It always works, but all variables of the rank are lost.

The solution: a ladder. Each step only affects ranks that the previous steps have not stopped:

1. At once: SIGINT, as in any Python program.
2. After `BREAK_AFTER` seconds, and repeatedly from then on: break the collective that the rank may
   be in (`rank.group.collective_abort`) and repeat the interrupt. A rank skips this if the
   interrupt was already raised in the user's code (`rank.interrupts`), which may be cleaning up.
3. After half the deadline: the same by force, even if the interrupt was raised before.
4. At the deadline: SIGKILL. The fork server then forks a new process for the rank.

A rank on which the code is over, and which reads what it has recorded of it for ``--profile``, has
stopped already: it is left alone, and only killed if it takes `READS_WITHIN` longer.

If one rank of a process group fails, the others wait for it in vain: they are stopped in the same
way. Ranks that are forming a group that will not be complete are taken out of it by steps 1 and 2.
"""

from __future__ import annotations

import asyncio
import signal
from collections import deque
from collections.abc import Mapping

from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.rank_messages import BreakCommand, Peers
from jupyter_sky.transport.protocol.topology import Topology

BREAK_AFTER = 0.2
"""Seconds after an interrupt when a rank that still runs is taken to be inside a collective."""

PEERS_AFTER = 1.0
"""Seconds that the other ranks of a run get to end by themselves when one has failed."""

READS_WITHIN = 60.0
"""Seconds after the deadline that a rank gets to read what it has recorded of code that is over."""

_POLL_EVERY = 0.005
_REMEMBERED = 100


class Stopper:
    """Stops runs, and formations of a process group, on the ranks of a node.

    Parameters
    ----------
    ranks
        The ranks by number; the supervisor's own table, which changes.
    """

    def __init__(self, ranks: Mapping[int, RankProcess]) -> None:
        self._ranks = ranks
        self._other_nodes: list[str] = []
        self._store: tuple[str, int] | None = None
        self._together = False
        self._deadline = 0.0
        self._stopping: set[str] = set()
        self._stopped_early: deque[str] = deque(maxlen=_REMEMBERED)
        self._code_over: dict[int, tuple[int | None, str]] = {}  # by rank: its process, and the run

    # What is running

    def run_begins(self, together: bool, deadline: float) -> None:
        """Remember how to stop the run that begins, in case one of its ranks fails.

        Parameters
        ----------
        together
            Whether its ranks are in one process group.
        deadline
            Seconds after which a rank that does not stop is killed.
        """
        self._together = together
        self._deadline = deadline

    def group_forms(self, topology: Topology) -> None:
        """Remember the rendezvous of a process group, and its other nodes."""
        self._store = (topology["head_addr"], topology["head_port"])
        elsewhere = [
            node for node in topology["nodes"] if not self._ranks.keys() & set(node["ranks"])
        ]
        self._other_nodes = sorted({node["addr"] for node in elsewhere})

    def was_stopped(self, run: str) -> bool:
        """Return whether a run was stopped, so that no rank of this node may begin it."""
        return run in self._stopped_early or run in self._stopping

    def on_code_over(self, process: RankProcess, message: Message) -> None:
        """Note that the code of a run is over on a rank, which reads what it has recorded."""
        self._code_over[process.rank] = (process.pid, message["code_over"])

    def peers_of(self, process: RankProcess) -> Peers:
        """Return what identifies a rank's connections to the others."""
        siblings = [p.pid for p in self._ranks.values() if p.pid and p is not process]
        return {"siblings": siblings, "addresses": self._other_nodes}

    # Runs

    def stop(self, run: str, deadline: float) -> None:
        """Begin to stop a run.

        Parameters
        ----------
        run
            The run.
        deadline
            Seconds after which a rank that still runs is killed.
        """
        processes = self._running(run)
        if not processes:
            # It may still be on its way here; then it does not begin.
            self._stopped_early.append(run)
            return
        if run in self._stopping:
            return
        self._stopping.add(run)
        for process in processes:
            process.signal(signal.SIGINT)
        self._wait(run, deadline, waited=0.0)

    def stop_after_failure(self, run: str) -> None:
        """Stop a run on the other ranks of the group, soon after one of them has failed in it."""
        if self._together:
            loop = asyncio.get_running_loop()
            loop.call_later(PEERS_AFTER, self.stop, run, self._deadline)

    def stop_after_loss(self, run: str) -> None:
        """Stop a run on the other ranks of the group, at once, after one of them was lost."""
        if self._together:
            self.stop(run, self._deadline)

    def _wait(self, run: str, deadline: float, waited: float) -> None:
        """Take the next step in a moment.

        Moments are counted, and not what the clock says: where the whole node stood still for
        longer than the deadline, ranks have had none of that time, nor has this process.
        """
        loop = asyncio.get_running_loop()
        loop.call_later(BREAK_AFTER, self._step, run, deadline, waited + BREAK_AFTER)

    def _step(self, run: str, deadline: float, waited: float) -> None:
        if waited < deadline:
            # More than once, since a slow rank may not have begun when it is first told.
            self._break(run, force=waited - BREAK_AFTER < deadline / 2 <= waited)
        elif not self._kill(run, deadline, spares=waited < deadline + READS_WITHIN):
            self._stopping.discard(run)
            return
        self._wait(run, deadline, waited)

    def _break(self, run: str, force: bool) -> None:
        for process in self._running(run):
            # A script is ended by the rank beside it, which must not be interrupted meanwhile. But
            # a first interrupt that came before the rank had begun has to be repeated.
            if not ((force and process.runs_script) or self._is_code_over(process)):
                self._break_collective(process, run, force)

    def _kill(self, run: str, deadline: float, spares: bool) -> bool:
        """Kill the ranks that still run; return whether some that only read were spared."""
        spared = False
        for process in self._running(run):
            if spares and self._is_code_over(process):
                spared = True
            else:
                process.ignored_stop = deadline
                process.signal(signal.SIGKILL)
        return spared

    def _is_code_over(self, process: RankProcess) -> bool:
        return self._code_over.get(process.rank) == (process.pid, process.run)

    def _running(self, run: str) -> list[RankProcess]:
        return [process for process in self._ranks.values() if process.run == run]

    # Formations

    async def abandon_formation(self, patience: float) -> None:
        """Take ranks out of a formation, and return once none is in it.

        Parameters
        ----------
        patience
            Seconds that they have left to complete it, which is fastest if all ranks take part.
        """
        store = self._store
        forming = [
            (process, group) for process in self._ranks.values() for group in process.formations
        ]

        def remaining() -> list[tuple[RankProcess, int]]:
            # Also those that were told of the next group meanwhile: this one comes before it.
            return [(process, group) for process, group in forming if group in process.formations]

        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        while remaining() and loop.time() < until:
            await asyncio.sleep(_POLL_EVERY)
        for process, _ in remaining():
            process.signal(signal.SIGINT)
        while remaining():
            await asyncio.sleep(BREAK_AFTER)
            for process, group in remaining():
                # Some wait in C++, and a rank that had not begun did not receive the interrupt.
                self._break_collective(process, group, False, store)

    def _break_collective(
        self,
        process: RankProcess,
        run: str | int,
        force: bool,
        store: tuple[str, int] | None = None,
    ) -> None:
        command: BreakCommand = {
            **self.peers_of(process),
            "op": "break",
            "run": run,
            "force": force,
            "in_collective": not process.runs_script,
            "store": store,
        }
        process.send_aside(command)
