"""The life of a cluster: record, start, attach, restart ranks, end. Functions of a controller."""

from __future__ import annotations

import asyncio
import contextlib
import math
import uuid
from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import process_group
from jupyter_sky.cluster.control.attach import restore
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.shutdown import end
from jupyter_sky.cluster.inventory import (
    cloud_resources,
    orphans,
    owed_ends,
    probe,
    registry,
    row_updates,
    stops,
)
from jupyter_sky.cluster.inventory.machines import every_machine_of, why_taken
from jupyter_sky.cluster.inventory.owed_ends import Origin
from jupyter_sky.cluster.inventory.stops import ClusterStopped
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.network import health
from jupyter_sky.cluster.runtime_env import ClusterConfig, RuntimeEnv, Timeouts, deadline
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.cluster.volumes import renewal, unattached
from jupyter_sky.cluster.volumes.mount import mount
from jupyter_sky.errors import ClusterLost, NameTaken, NoConnection, SkyError
from jupyter_sky.providers.base import AgentGone, Machine, Progress, Provider, counts_hours
from jupyter_sky.providers.buckets.looking import check_there
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.cloud import CloudProvider, Queueing
from jupyter_sky.providers.progress import Preparation, Rented
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.event_loop import call
from jupyter_sky.transport.tasks import blocking, shielded, uninterrupted

_LEAVE_WITHIN = 3.0
"""Seconds that ranks get to leave their plugins before they are restarted."""


def config_of(
    row: RegistryRow,
    provider: Provider,
    runtime_env: RuntimeEnv,
    timeouts: Timeouts | None = None,
    visits: bool = False,
    volumes: Sequence[Volume] = (),
) -> ClusterConfig:
    """Return the configuration of a controller for a registry row."""
    spec = replace(registry.recorded_spec(row), volumes=tuple(volumes))
    place = row.spec.get("place")
    timeouts = timeouts or Timeouts()
    return ClusterConfig(spec, row.id, provider, runtime_env, timeouts, visits, place, row.meter)


async def identity(spec: ClusterSpec, provider: Provider) -> str:
    """Return the id of a cluster: a new one, or that of a start left in a queue."""
    there = await blocking(registry.find, spec.name)
    is_left = there is not None and not there.machines and not there.is_starting
    if is_left and there and isinstance(provider, Queueing):
        is_here = there.spec.get("place") == provider.location()
        if is_here and await provider.is_queued(there.id):
            return there.id
    return uuid.uuid4().hex[:8]


async def _record(controller: Controller) -> None:
    """Write a cluster into the registry, replacing one of its name if nothing of that is left.

    Raises
    ------
    NameTaken
        If there is another cluster of that name.
    SkyError
        If there is only what is left of one that did not come up with another provider.
    """
    provider = controller.provider
    if controller.spec.idle_timeout is None:
        # Something that costs money must not run for ever while a notebook stays open.
        usual = getattr(provider, "idle_timeout", None)
        controller.spec = replace(controller.spec, idle_timeout=usual)
    spec = controller.spec
    there = await blocking(registry.find, spec.name)
    if there and there.is_starting:
        raise NameTaken(
            f"cluster {spec.name} is being started by another notebook: wait for it, or "
            "start one of another name with `--cluster NAME`."
        )
    if there and not await probe.has_agent(there, provider):
        await cloud_resources.refuse_elsewhere(provider, there)
        await stops.refuse(there, provider)
        machines = every_machine_of(there, provider)
        await owed_ends.remove_machines(Origin.of_row(there, provider), machines)
        await probe.record_end(there.id, provider)
        if there.id != controller.id:
            await _release(controller, there.id, there.spec.get("place"))
        await blocking(registry.remove, there.id)
    row = await blocking(registry.describe, spec, controller.runtime_env.plugins)
    grace = getattr(provider, "grace", None)
    row["grace"] = grace if grace is not None and math.isfinite(grace) else None
    row["counts_hours"] = counts_hours(provider)
    if isinstance(provider, CloudProvider):
        controller.place = row["place"] = provider.location()
    try:
        await blocking(registry.record, controller.id, spec.name, provider.name, row)
    except KeyError:
        raise await blocking(why_taken, spec.name, provider) from None
    with contextlib.suppress(registry.RegistryError):
        await blocking(orphans.forget_old)


async def start(controller: Controller, progress: Progress) -> None:
    """Launch the machines, wait for the ranks, form the group; if one fails, end what was started.

    Raises
    ------
    SkyError
        If one of these fails. Nothing is launched if a volume cannot be made, or if there is
        another cluster of that name.
    """
    await _record(controller)
    renting: list[asyncio.Task[None]] = []

    def keep(rented: Rented) -> None:
        for each in renting:  # where a cloud took back what it gave, others were rented
            each.cancel()
        keeping = row_updates.keep_rent(controller.id, rented, controller.cost.meter.since)
        renting.append(asyncio.ensure_future(keeping))

    def say(said: str | Preparation) -> None:
        if isinstance(said, Rented):
            # Nobody pays while machines are chosen, or the user is asked.
            controller.cost.begin()
            call(lambda: keep(said))
        progress(said)

    try:
        await _launch(controller, say)
    except BaseException:
        await uninterrupted(down(controller))  # Ctrl-C may come only now
        raise
    finally:
        for each in renting:
            each.cancel()
        await asyncio.gather(*renting, return_exceptions=True)


async def undo_start(controller: Controller) -> None:
    """End what a start that was stopped has left: all of it, if it had just succeeded."""
    if controller.state.phase is not ClusterPhase.DOWN:
        await down(controller)


async def _launch(controller: Controller, progress: Progress) -> None:
    runtime_env = controller.runtime_env
    if isinstance(controller.provider, Queueing):
        progress = _recorded(controller, progress)
    progress = row_updates.keep_agents(controller.id, controller.provider, progress)
    if volumes := controller.spec.volumes:
        await blocking(check_there, volumes, controller.provider)
    # Stop may come while machines start: this task does not wait for the launch; `down` ends it.
    launch = controller.provider.launch(
        controller.spec, controller.id, runtime_env.imports, progress
    )
    controller.launch = asyncio.get_running_loop().create_task(launch)
    machines = await shielded(controller.launch)
    rows = [machine.row() for machine in machines]
    if counts_hours(controller.provider):
        controller.cost.begin()  # not in the queue
    since = controller.cost.meter.since

    def record_machines() -> None:
        registry.record_machines(controller.id, rows, since)
        if stops.are_possible(controller.provider, machines):
            stops.record_possible(controller.id)

    # Writing to disk takes as long as starting a rank, so do both at once.
    recorded = asyncio.get_running_loop().create_task(blocking(record_machines))
    try:
        await get_ready(controller, machines, progress)
    finally:
        await recorded


def _recorded(controller: Controller, progress: Progress) -> Progress:
    """Record the progress of a long start in the registry, for others to see."""
    shown = ""

    def say(said: str | Preparation) -> None:
        nonlocal shown
        progress(said)
        if (text := str(said)) != shown:
            shown = text
            call(
                lambda: controller.spawn(blocking(row_updates.record_progress, controller.id, text))
            )

    return say


async def get_ready(
    controller: Controller, machines: Sequence[Machine], progress: Progress
) -> None:
    """Connect to started machines, wait for the ranks, form the group.

    Raises
    ------
    SkyError
        If one of these fails.
    """
    runtime_env = controller.runtime_env
    await controller.connect(machines, 0)
    if len(controller.connections) > 1:
        progress("checking the network")
    await health.check_network(controller.connections, controller.provider)
    if runtime_env.preload:
        progress(f"importing {', '.join(runtime_env.preload)}")
    async with deadline(controller.timeouts.start, "the nodes did not get ready"):
        await controller.until(lambda: bool(controller.state.versions) and controller.state.settled)
    for name, reason in controller.state.missing:
        raise SkyError(f"{name} cannot be imported on the nodes: {reason}")
    controller.warnings += version_check.check(controller.versions)
    if controller.spec.volumes:
        progress("preparing volumes")
        at = await mount(
            controller.connections, controller.spec.volumes, controller.provider, controller.warn
        )
        renewal.begin(controller, at)
    if runtime_env.together:
        progress("forming the group")
    await process_group.form(controller)
    if controller.state.phase is ClusterPhase.LOST:
        raise controller.loss.anew()
    controller.state = replace(controller.state, phase=ClusterPhase.READY)
    _keep_use(controller)


def _keep_use(controller: Controller) -> None:
    grace = getattr(controller.provider, "grace", None)
    if isinstance(controller.provider, CloudProvider) and grace and not controller.visits:
        controller.spawn(_use(controller, grace))


async def _use(controller: Controller, grace: float) -> None:
    """Keep the registry up to date about what a cluster costs until it is lost, and then."""
    await row_updates.keep_use(controller, grace)
    if controller.state.phase is ClusterPhase.LOST:
        ended = await probe.record_end(controller.id, controller.provider)
        if ended is not None:
            controller.cost.end(ended)
            controller.wake()


async def attach(controller: Controller, row: RegistryRow) -> bool:
    """Attach to a cluster that another kernel started; if it is gone, remove what is left of it.

    Returns
    -------
    bool
        Whether it exists.

    Raises
    ------
    SkyError
        If it exists but cannot be used now; it is left untouched then.
    """
    try:
        return await _attach(controller, row)
    except BaseException:
        # Nobody has it, while nodes would take this for a notebook that uses them.
        controller.close()
        raise


async def _attach(controller: Controller, row: RegistryRow) -> bool:
    provider = controller.provider
    if row.is_stopped:
        raise ClusterStopped(stops.sentence(row.name))
    every = every_machine_of(row, provider)
    machines, leaving = every[: len(row.machines)], every[len(row.machines) :]
    try:
        await restore(controller, machines, leaving)
    except AgentGone:
        now = await blocking(registry.with_id, row.id)
        if now is None:  # another process has ended it meanwhile
            controller.close()
            return False
        if (now.machines, now.leaving) != (row.machines, row.leaving):
            raise SkyError(
                f"cluster {row.name} was changed by another notebook: try again."
            ) from None
        # A visitor, or a kernel that attaches while another one replaces a node, removes nothing.
        shared = controller.visits or controller.spec.replace
        if shared and await probe.has_agent(row, provider):
            raise SkyError(
                f"cluster {row.name} has lost a node, which the notebook that uses it handles; if "
                f"no notebook does, end the cluster with `%sky down {row.name}`."
            ) from None
        await cloud_resources.refuse_elsewhere(provider, row)
        await stops.refuse(row, provider)
        unwritten = await unattached.write_back(every, controller.spec.volumes, provider)
        unattached.refuse_to_lose(row.name, provider, unwritten, has_lost_node=True)
        await uninterrupted(down(controller, every))  # half an end would leave machines that cost
        return False
    except (OSError, ClusterLost) as error:
        # It may be busy, or asleep.
        raise SkyError(
            f"cluster {row.name} does not answer ({error}): try again, or end it "
            f"with `%sky down {row.name}`."
        ) from None
    _keep_use(controller)
    return True


async def restart(controller: Controller, ranks: Sequence[int]) -> None:
    """End rank processes, wait for new ones, form the group.

    Raises
    ------
    NoConnection
        If a node does not answer: no rank was ended then.
    SkyError
        If the ranks do not start, or cannot form a group.
    """
    # All nodes are asked to end no rank first: otherwise some ranks would be new, and others not.
    try:
        await process_group.end_ranks(controller, ())
    except NoConnection as error:
        raise NoConnection(f"no rank was restarted: {error}") from None
    await process_group.restart(controller, ranks, _LEAVE_WITHIN)


async def down(
    controller: Controller,
    machines: Sequence[Machine] = (),
    progress: Progress = lambda text: None,
) -> list[str]:
    """End a cluster with everything that belongs to it, and remove it from the registry.

    Parameters
    ----------
    controller
        The cluster.
    machines
        Its machines to which there is no connection.
    progress
        Called with a description of the wait if a node does not answer.

    Returns
    -------
    list of str
        The nodes that could not be told; they will be told when they answer again.
    """
    controller.listener.on_end(ClusterLost(f"cluster {controller.spec.name} was ended."))
    controller.state = replace(controller.state, phase=ClusterPhase.DOWN)
    if controller.repair:
        controller.repair.cancel()
        await asyncio.gather(controller.repair, return_exceptions=True)
    if controller.launch and not controller.connections:
        controller.launch.cancel()
        with contextlib.suppress(Exception, asyncio.CancelledError):
            machines = [*machines, *await controller.launch]
    is_there = any(each.is_up for each in controller.connections)
    untold = await end(controller, controller.connections, machines, progress, whole=True)
    if isinstance(controller.provider, CloudProvider):
        if not is_there:
            await probe.record_end(controller.id, controller.provider)
        # End it even if the registry fails: its machines cost money.
        with contextlib.suppress(registry.RegistryError):
            await blocking(registry.clear_starter, controller.id)
        await _release(controller, controller.id, controller.place)
    controller.wake()
    try:
        await blocking(registry.remove, controller.id)
    except registry.RegistryError as error:
        name = controller.spec.name
        raise SkyError(
            f"cluster {name} was ended, but it is still in the registry: {error} After that "
            f"`%sky down {name}` removes it."
        ) from None
    return untold


async def _release(controller: Controller, identity: str, place: str | None) -> None:
    """Release everything that a cluster has rented from its provider."""
    if isinstance(controller.provider, CloudProvider):
        await controller.provider.release_cluster(identity, place, lambda text: None)
