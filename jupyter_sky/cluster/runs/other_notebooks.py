"""Other notebooks and earlier kernels: runs wait until theirs are over, and cells tell of them."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Set
from dataclasses import dataclass

from jupyter_sky.cluster.control import recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.sending import outcome, recorded
from jupyter_sky.errors import OTHERS_RUN, SkyError
from jupyter_sky.formatting import format_duration, format_list
from jupyter_sky.transport.protocol.events import RunBegan
from jupyter_sky.transport.rank_ranges import among
from jupyter_sky.transport.tasks import blocking, cancel_all

# Values are unpickled only if this computer's registry knows that they were asked for.
UNKNOWN_NAMES = (
    "the registry of this computer does not have the names that the run should bring back: get "
    "them with `%sky pull NAMES` when the run is over"
)

LOOK_EVERY = 5.0
"""Seconds after which a run that waits looks again what those before it wait for."""

_ASKED_AGAIN = 0.1
"""Seconds after which ranks are asked again where another notebook was first."""

_GONE_WITHIN = 8.0
"""Seconds within which a notebook that has ended has lost its place in the queue."""

_ASKED_EVERY = 1.0
"""Seconds after which a notebook says again that its run waits, to keep its place in the queue."""


def said_of_origin(title: str, is_shared: bool) -> str:
    """Say who began a run that this notebook has not; other notebooks may share its cluster."""
    others = "another notebook or " if is_shared else ""
    return f"`{title or 'a run'}` was started by {others}an earlier kernel"


@dataclass
class _Unfinished:
    """A run of another notebook: the ranks still in it, and which of ours it came after."""

    ranks: set[int]
    after: frozenset[str]


class OtherNotebooks:
    """The other notebooks and terminals that use the cluster too.

    Each notebook sends a name when it has assigned or changed it itself, and does not know what
    other notebooks have sent or bound in the meantime.

    Parameters
    ----------
    controller
        The controller of the cluster.
    running
        Returns the runs of others that ranks are busy with.
    stop
        Stops a run.

    Attributes
    ----------
    unseen
        The run of another kernel that was found at the start, until the user asks for it.
    """

    def __init__(
        self,
        controller: Controller,
        running: Callable[[], Set[str]],
        stop: Callable[[str], object],
    ) -> None:
        self._controller = controller
        self._running = running
        self._stop = stop
        self.unseen: Run | None = None
        self._unfinished: dict[str, _Unfinished] = {}
        self._queued: set[str] = set()
        self._asking: dict[str, asyncio.Task[None]] = {}
        self._have_run = self._is_told = False
        self._is_missed_told = False

    def notice(self, cell: str | None) -> str:
        """Return the notice for a cell; empty if it was shown before, or this is no cell."""
        if self._is_told or not self._have_run or cell is None:
            return ""
        self._is_told = True
        return (
            "another notebook or terminal has run something here too: of a name that both have, "
            "ranks have what was assigned last in either; `%sky push NAME` sends this notebook's"
        )

    def on_began(self, event: RunBegan, over: Iterable[Run]) -> None:
        """Note that a node has begun a run of another notebook, after those that are over there."""
        self._have_run = self._controller.has_company = True
        if event.run not in self._unfinished:
            ranks = set(among(event.ranks, self._controller.ranks))
            self._unfinished[event.run] = _Unfinished(ranks, frozenset(run.id for run in over))
        while len(self._unfinished) > len(self._controller.connections):  # each has one at most
            del self._unfinished[next(iter(self._unfinished))]

    def on_over(self, run: str | None, rank: int) -> None:
        """Note that a rank has finished its part of a run."""
        if run in self._unfinished:
            self._unfinished[run].ranks.discard(rank)
            if not self._unfinished[run].ranks:
                del self._unfinished[run]

    async def wait_for_turn(self, run: Run) -> None:
        """Wait until the runs of others are over, or this one is; say so in its cell.

        Raises
        ------
        SkyError
            For a cell, if the unseen run is going on: the user may want to see that first, or not
            at all.
        """

        def is_free() -> bool:
            if run.finished or self._controller.formation.outdated:  # which is said at its turn
                return True
            return not (self._running() or self._are_before(run.id))

        since = time.monotonic()
        if not is_free():
            await self._enter_queue(run.id)
        if not (is_free() or await self._controller.holds_soon(is_free)):
            self._refuse_behind_unseen(run)
            # Not `%sky`: the kernel is busy, and follows only what it found when it attached.
            name = self._controller.spec.name
            run.on_notice(
                f"the cluster is {OTHERS_RUN}: this one begins when that is over; in a terminal, "
                f"`jupyter sky attach {name}` shows that, and `jupyter sky interrupt --cluster "
                f"{name}` stops it"
            )
            if recording := recorded.record_waiting(self._controller.id, run, has_others=True):
                await recording
            stopping = asyncio.ensure_future(self._stop_left(run))
            try:
                await self._controller.until(is_free)
            finally:
                await cancel_all([stopping])
            if not run.finished:
                waited = format_duration(time.monotonic() - since)
                run.on_notice(f"waited {waited} for a run that another notebook or program began")
        await self.let_finish(run)

    @property
    def have_queued(self) -> bool:
        """Whether another notebook has a run that waits for its turn."""
        return not self._queued.issuperset(self._controller.state.queue)

    @property
    def have_run(self) -> bool:
        """Whether a run of another notebook goes on, or waits for its turn."""
        return bool(self._running()) or self.have_queued

    @contextlib.asynccontextmanager
    async def queued_if_busy(self, run: str) -> AsyncIterator[None]:
        """Take a run out of the queue in the end, if it has come there meanwhile."""
        try:
            yield
        finally:
            if asking := self._asking.pop(run, None):
                await cancel_all([asking])
                self._controller.spawn(self._leave_queue(run))

    @contextlib.asynccontextmanager
    async def kept_waiting(self, is_idle: Callable[[], bool]) -> AsyncIterator[bool]:
        """Let no run of another notebook begin meanwhile.

        Parameters
        ----------
        is_idle
            Returns whether nothing runs.

        Yields
        ------
        bool
            Whether nothing runs, and nothing that came before is about to begin.
        """
        controller = self._controller
        change = f"change-{uuid.uuid4().hex[:12]}"  # waits in the place of a run

        def is_free() -> bool:
            return is_idle() and not self._are_before(change)

        async with self.queued_if_busy(change):
            await self._enter_queue(change)
            if await controller.holds_soon(is_idle):
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(_GONE_WITHIN):
                        await controller.until(lambda: is_free() or not is_idle())
            yield is_free()

    async def wait_as_refused(self, run: Run) -> None:
        """Wait a moment where another notebook was first, of which this one hears only then."""
        await self._enter_queue(run.id)
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(run.over.wait(), _ASKED_AGAIN)

    async def _enter_queue(self, run: str) -> None:
        """Let a run wait behind those of other notebooks that wait already."""
        if run not in self._asking:
            self._queued.add(run)
            self._asking[run] = asyncio.ensure_future(self._keep_place(run))
            # Answered behind the event that says who is before it.
            await self._ask("queue", run)

    async def _keep_place(self, run: str) -> None:
        while True:
            await asyncio.sleep(_ASKED_EVERY)
            await self._ask("queue", run)

    async def _leave_queue(self, run: str) -> None:
        await self._ask("leave_queue", run)  # answered behind the event, as above
        self._queued.discard(run)

    async def _ask(self, what: str, run: str) -> None:
        await request_quietly(self._controller.connection(0), what, run=run)

    def _are_before(self, run: str) -> bool:
        """Return whether runs of others begin before one, which may not be in the queue itself."""
        queue = self._controller.state.queue
        ahead = queue[: queue.index(run)] if run in queue else queue
        return not self._queued.issuperset(ahead)

    async def _stop_left(self, run: Run) -> None:
        """While a run waits, stop those before it that wait for a notebook that does not come back.

        It gets as long as the nodes would wait for it if nobody else were there.
        """
        name, patience = self._controller.spec.name, getattr(self._controller.provider, "grace", 0)
        since: dict[str, float] = {}
        while True:
            await asyncio.sleep(LOOK_EVERY)
            for each in self._running():
                if not await self._is_left(each):
                    since.pop(each, None)
                elif each not in since:
                    since[each] = time.monotonic()
                    run.on_notice(
                        "the run before this one waits for a notebook that is not connected: it is "
                        f"stopped in {format_duration(patience)} if that does not come back; in a "
                        f"terminal, `jupyter sky interrupt --cluster {name}` stops it now"
                    )
                elif time.monotonic() - since[each] >= patience:
                    self._stop(each)

    async def _is_left(self, run: str) -> bool:
        """Return whether nodes say that a run waits for a notebook that is not connected."""
        asked = [each.request("left", run=run) for each in self._controller.connections]
        try:
            answers = await asyncio.gather(*asked)
        except SkyError:
            return False
        return all(each["is_left"] for each in answers)

    def _refuse_behind_unseen(self, run: Run) -> None:
        unseen = self.unseen
        if unseen is None or run.task.script or self._controller.shared:
            return
        if unseen.id in self._running():
            raise SkyError(
                f"cluster {self._controller.spec.name} is busy with `{unseen.task.title}`, which "
                "an earlier kernel or a terminal began: follow it with `%sky attach`, or stop it "
                "with `%sky interrupt`."
            )

    async def let_finish(self, run: Run) -> None:
        """Wait until others' runs that nodes have begun before this one are over everywhere.

        On some ranks these may not have begun yet, and never will if their kernel has ended: where
        nothing runs, this waits a moment only.
        """

        def before() -> set[str]:
            return {name for name, each in self._unfinished.items() if run.id not in each.after}

        def ends() -> bool:
            return outcome.ends_everywhere(self._controller, run)

        while before() and not ends():
            await self._controller.until(lambda: ends() or not self._running() & before())
            if not await self._controller.holds_soon(lambda: ends() or not before()):
                for name in before() - self._running():
                    del self._unfinished[name]

    async def let_all_finish(self) -> None:
        """Wait until others' runs are over, and those that wait for their turn, before ranks end.

        These begin within a moment once the cluster is free and whole.
        """
        controller = self._controller
        while True:
            await controller.until(lambda: not self._running())
            if not controller.has_company:
                return
            await recovery.make_whole(controller)
            if not await controller.holds_soon(lambda: bool(self._running())):
                return

    async def say_missed(self, run: Run) -> None:
        """Say in the cell of a run that there is an unseen one.

        One that is over, and whose values have come, was most likely shown: its kernel ended within
        the second in which it would have told nodes so.
        """
        unseen = self.unseen
        if unseen is None or self._is_missed_told or run.in_background or not run.task.title:
            return
        self._is_missed_told = True
        # Nothing runs any more: its end is among the events that are still on their way.
        await self._controller.holds_soon(lambda: unseen.finished)
        if unseen.finished and not await blocking(owed_runs.owes, self._controller.id, unseen.id):
            return
        names = sorted({name for each in unseen.task.values.values() for name in each})
        brings = f" and brings {format_list(names)} here" if names else ""
        origin = said_of_origin(unseen.task.title, self._controller.shared)
        run.on_notice(f"{origin}: `%sky attach` shows its output{brings}")
