"""The steps of a run: its data is sent while it waits for its turn, then it begins, then it ends.

Once it is its turn, the cluster is made whole, the run is sent to the ranks, and its end is
awaited.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from functools import partial

from jupyter_sky.cluster.control import recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import BegunInPart, not_sent
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.transfer import Transfer
from jupyter_sky.cluster.runs.monitor import Monitor
from jupyter_sky.cluster.runs.other_notebooks import OtherNotebooks
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.sending import dispatch, recorded
from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.transport.tasks import cancel_all, either


class Steps:
    """Takes runs through their steps.

    Parameters
    ----------
    controller
        The controller of the cluster.
    others
        The other notebooks, whose runs go on before or wait.
    monitor
        Told of runs that begin.
    turn
        Held by the run whose turn it is.
    fail
        Ends a run because one of its steps failed; without a trouble, if more is known by itself.
    """

    def __init__(
        self,
        controller: Controller,
        others: OtherNotebooks,
        monitor: Monitor,
        turn: asyncio.Lock,
        fail: Callable[[Run, SkyError | None], None],
    ) -> None:
        self._controller, self._others, self._monitor = controller, others, monitor
        self._turn, self._fail = turn, fail

    async def take(self, run: Run) -> None:
        """Take a run through all its steps; an error in one of them ends it."""
        # Data is sent before the run's turn: the user may change it later.
        parts = {**run.task.update.blobs, **run.task.blobs}
        sending = asyncio.ensure_future(self._put(run, parts)) if parts else None
        if not parts:
            run.data_sent.set()
        try:
            await self._run_in_turn(run, sending)
        except Exception as error:  # of any kind: the cell that waits for the run has to end
            self._fail_because(run, error)
        finally:
            if sending:
                await cancel_all([sending])  # if the run was stopped, the rest is not needed
            # The data is the user's own memory: it must be possible to free it.
            run.task.update.let_go()
            run.task.blobs.clear()

    def turn_of(self, run: Run) -> contextlib.AbstractAsyncContextManager[None]:
        """Return what waits for a run's turn, and gives it back unless a further attempt has it."""
        return run.task.turn.within(self._turn) if run.task.turn else self._turn

    async def _put(self, run: Run, parts: dict[str, memoryview]) -> None:
        """Send the large parts of a run's data to every node; end the run if this fails."""
        try:
            await broadcast.send(parts, self._controller.connections, Transfer(run.on_transfer))
        except Exception as error:  # as in `take`
            self._fail_because(run, error)
        finally:
            run.data_sent.set()

    async def _run_in_turn(self, run: Run, sending: asyncio.Task[None] | None) -> None:
        """Wait for the run's turn, and keep other runs waiting until it is over.

        A run takes its place in the queue before its data is sent, so that it is not overtaken:
        later runs count on what it does.
        """
        recording = recorded.record_waiting(self._controller.id, run, self._turn.locked())
        async with self.turn_of(run):
            if recording:
                await recording
            if sending:
                await either(sending, run.over.wait())
            if not run.finished and not run.sent:  # another kernel has sent its own
                async with self._others.queued_if_busy(run.id):
                    await self._begin(run)
            if run.finished and not run.sent:  # perhaps before it was recorded that it waits
                await recorded.settle(self._controller.id, run)
            await recovery.until_over(
                self._controller, run.over, lambda: run.waiting, run.on_notice
            )

    async def _begin(self, run: Run) -> None:
        """Send a run to its ranks, after the runs that other notebooks have begun."""
        controller = self._controller
        while not (run.sent or run.finished):
            if not controller.alive:
                raise controller.loss.anew()
            await self._others.wait_for_turn(run)
            dispatch.check_ranks(controller, run.task)  # the cluster may have changed meanwhile
            await self._others.say_missed(run)
            give_way = partial(self._others.let_finish, run) if controller.has_company else None
            if not await dispatch.send_once_whole(controller, run, self._monitor.begin, give_way):
                await self._others.wait_as_refused(run)

    def _fail_because(self, run: Run, error: Exception) -> None:
        """End a run because of an error in one of its steps."""
        error = not_sent(error, "the run")
        is_replaced = isinstance(error, ClusterLost) and self._controller.alive
        # If ranks were lost, or their node is being replaced, their failures say more.
        is_said = run.failed and (is_replaced or isinstance(error, BegunInPart))
        self._fail(run, None if is_said else error)
