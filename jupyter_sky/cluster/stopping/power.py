"""Stopping a cluster so that its disks stay, and starting it again."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.cluster.control import lifecycle
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.signals import as_interrupt
from jupyter_sky.cluster.inventory import registry, stops
from jupyter_sky.cluster.inventory.machines import machines_of
from jupyter_sky.cluster.inventory.stops import ClusterStopped, DiskCost
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import ClusterLost, SkyError, UsageError
from jupyter_sky.providers.base import Machine, Progress, Provider
from jupyter_sky.providers.cloud import Stoppable
from jupyter_sky.transport.event_loop import wait, wait_uninterrupted, wait_with_cleanup
from jupyter_sky.transport.tasks import blocking, shielded


class StillRunning(SkyError):
    """The machines of a cluster that did not start are running, as they could not be stopped."""


class Power:
    """Turns a cluster's machines off and on again, keeping their disks."""

    def __init__(self, controller: Controller) -> None:
        self._controller = controller
        self._known_since = time.time()

    def check_stop(self) -> DiskCost:
        """Refuse a cluster that cannot be stopped now; else return the cost of its disks.

        Raises
        ------
        UsageError
            If it cannot be stopped, with what to do instead.
        ClusterStopped
            If it is stopped already, or about to be.
        """
        controller = self._controller
        if controller.state.is_in_use:
            raise UsageError(
                f"cluster {controller.spec.name} is busy: stop it when the run is over, or end "
                "that first with `%sky interrupt`."
            )
        provider = _stoppable(controller.provider)
        machines = _machines(controller)
        provider.check_stop(machines)

        async def ask() -> DiskCost:
            price = await provider.storage_price(machines)
            try:
                return DiskCost(price, await provider.money_left(machines))
            except SkyError:
                # Another notebook may be stopping them just now.
                if any(await provider.stopped_at(machines)):
                    raise ClusterStopped(stops.sentence(controller.spec.name)) from None
                raise

        return wait(ask())

    def stop(self, cost: DiskCost) -> None:
        """Stop the machines; the ranks' memory is lost. Ctrl-C does not end this half-way.

        Parameters
        ----------
        cost
            The result of `check_stop`.

        Raises
        ------
        SkyError
            If they are not stopped; the cluster then continues.
        """
        wait_uninterrupted(_stop(self._controller, cost))

    @as_interrupt()
    def start(self, row: RegistryRow, progress: Progress, money: float | None = None) -> None:
        """Start the machines of a registry row, and wait until the ranks are ready.

        Parameters
        ----------
        money
            Dollars that the cluster may cost from now on; by default, the rest of its limit.

        Raises
        ------
        SkyError
            If it does not start; it then stays stopped.
        """
        controller = self._controller
        try:
            start = _start(controller, row, progress, money)
            wait_with_cleanup(start, lambda: _undo_start(controller, row))
            self._known_since = time.time()
        except SkyError as error:
            if isinstance(error, UsageError | StillRunning):
                raise
            raise SkyError(f"cluster {row.name} stays stopped: {error}") from None

    @property
    def untold_loss(self) -> str:
        """Why the cluster was lost, as a sentence; empty if an error of a cell has said it."""
        return "" if self._controller.loss_is_told else self._controller.loss.reason

    @property
    def is_left(self) -> bool:
        """Whether the cluster is lost, while nodes of it are left."""
        is_lost = self._controller.state.phase is ClusterPhase.LOST
        return is_lost and any(each.is_up for each in self._controller.connections)

    def end_lost(self) -> bool:
        """End what is left of a lost cluster, unless another process goes on with it.

        Returns
        -------
        bool
            Whether it is ended; otherwise it may be up, and this process may attach to it.

        Raises
        ------
        ClusterStopped
            If its machines are only stopped; then nothing is done.
        """

        async def end() -> bool:
            controller = self._controller
            if row := await blocking(registry.with_id, controller.id):
                is_again = row.started > self._known_since and not row.is_stopped
                # What is lost here may be a node that another notebook has removed.
                if is_again or len(row.nodes) != len(controller.state.nodes):
                    return False
                await stops.refuse(row, controller.provider)
            await lifecycle.down(controller)
            return True

        return wait_uninterrupted(end())


async def _stop(controller: Controller, cost: DiskCost) -> None:
    provider, before = _stoppable(controller.provider), controller.state.phase
    # An interrupted wait is not a lost machine.
    controller.state = replace(controller.state, phase=ClusterPhase.DOWN)
    try:
        await provider.stop_machines(_machines(controller), controller.spec.autostop)
    except BaseException:
        controller.state = replace(controller.state, phase=before)
        raise
    stopped = time.time()
    controller.cost.end(stopped)
    controller.loss = ClusterLost(stops.sentence(controller.spec.name))
    controller.listener.on_end(controller.loss)
    controller.close()
    controller.wake()
    # If it cannot be written, examining the machines shows it as well.
    with contextlib.suppress(registry.RegistryError):
        await blocking(stops.record_stop, controller.id, stopped, cost)


async def _start(
    controller: Controller, row: RegistryRow, progress: Progress, money: float | None
) -> None:
    provider = _stoppable(controller.provider)
    if row.is_starting:
        raise UsageError(stops.being_started(row.name))
    machines = machines_of(row, provider)
    is_off = await stops.find_stopped(row, provider, machines) or row.is_stopped
    if not is_off and not any(await provider.stopped_at(machines)):
        raise UsageError(f"cluster {row.name} is not stopped: `%sky status` shows how it is.")
    left = stops.money_left(row, time.time()) if money is None else money

    def on_running() -> None:
        controller.cost.meter = stops.record_running(row.id, money) or controller.cost.meter

    # Whatever stops this meanwhile: what is recorded has to be undone.
    beginning = asyncio.ensure_future(blocking(stops.record_begin, row))
    try:
        controller.cost.meter = await shielded(beginning)
        spec = controller.spec
        launch = provider.start_machines(
            spec, row.id, machines, controller.runtime_env.imports, progress, on_running, left
        )
        controller.launch = asyncio.ensure_future(launch)
        started = await shielded(controller.launch)
        rows = [each.row() for each in started]
        await blocking(stops.record_start, row.id, rows)
        await lifecycle.get_ready(controller, started, progress)
    except BaseException:
        await asyncio.wait({beginning})
        if not beginning.exception():
            await shielded(_leave_stopped(controller, provider, row))
        raise


async def _undo_start(controller: Controller, row: RegistryRow) -> None:
    """Stop what a start that was stopped has left: all of it, if it had just succeeded."""
    if controller.launch and controller.state.phase is not ClusterPhase.DOWN:
        await _leave_stopped(controller, _stoppable(controller.provider), row)


async def _leave_stopped(controller: Controller, provider: Stoppable, row: RegistryRow) -> None:
    """Stop the started machines of a cluster that did not start.

    Raises
    ------
    StillRunning
        If one may still be running; the cluster is up then, for who attaches to it, unless its
        machines stop by themselves.
    """
    controller.state = replace(controller.state, phase=ClusterPhase.DOWN)
    started: Sequence[Machine] = ()
    trouble: SkyError | None = None
    if launch := controller.launch:
        is_under_way = not launch.done()
        launch.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):  # it stops what it has started
            try:
                started = await launch
            except SkyError as error:
                # Where it had failed before, the user hears of that anyway.
                trouble = error if is_under_way else None
    try:
        if started:
            # Their disks stay in any case: this cluster was stopped before.
            await provider.stop_machines(started, autostop=True)
    except SkyError as error:
        await blocking(stops.record_start, row.id, [each.row() for each in started])
        raise StillRunning(
            f"the start of {row.name} was ended, and its machines still run: {error} `%sky stop "
            f"{row.name}` stops them."
        ) from None
    finally:
        controller.close()
    price = None
    with contextlib.suppress(SkyError):
        price = await provider.storage_price(machines_of(row, provider))
    if price is None and row.is_stopped:
        price = row.price
    await blocking(stops.record_stop, controller.id, time.time(), DiskCost(price))
    if trouble:
        raise StillRunning(f"the start of {row.name} was ended, but {trouble}")


def _machines(controller: Controller) -> Sequence[Machine]:
    return [each.machine for each in controller.connections]


def _stoppable(provider: Provider) -> Stoppable:
    if isinstance(provider, Stoppable):
        return provider
    if provider.name == "ssh":
        instead = "its hosts are yours: `%sky down` ends it, and what is on their disks stays"
    else:
        instead = "it costs nothing: `%sky down` ends it, and files of this computer stay"
    raise UsageError(f"{provider.name} nodes are not stopped. {instead.capitalize()}.")
