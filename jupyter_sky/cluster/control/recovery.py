"""Recovery from lost nodes: they are replaced, and the remaining ranks continue."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster.control import process_group, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import describe_loss
from jupyter_sky.cluster.control.shutdown import origin
from jupyter_sky.cluster.cost_meter import total_price
from jupyter_sky.cluster.inventory import owed_ends, stops, turns
from jupyter_sky.cluster.network import peer_checks
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.errors import RESTARTS_TOO, RUN_AGAIN, GroupBroken, NoConnection, SkyError
from jupyter_sky.formatting import format_count, format_dollars, format_duration, format_ranks
from jupyter_sky.providers.cloud import Stoppable
from jupyter_sky.providers.scaling import Scalable
from jupyter_sky.transport.protocol.error_report import report
from jupyter_sky.transport.protocol.events import RankDone, RankExited
from jupyter_sky.transport.tasks import undoing

_TRIES = 3
"""How often it is begun anew because yet another node was lost meanwhile."""

_FORMATIONS = 2
"""How often the group is formed for one run: a rank that is lost meanwhile comes again, mostly."""

RUN_PATIENCE = 6.0
"""Seconds after which a node that nobody reaches ends a run, if the user does not say otherwise.

They count from when its silence was noticed; so it is known within 15 seconds of the last word.
"""

IDLE_PATIENCE = 600.0
"""Seconds for which such a node is waited for where nothing runs."""

START_PATIENCE = 60.0
"""The same while the cluster starts, which the user sees and can stop: a new start takes longer."""


async def make_whole(controller: Controller) -> None:
    """Wait for all nodes, replace lost ones, and form the group again if it is broken.

    Raises
    ------
    SkyError
        If the cluster is lost, or the group cannot be formed.
    """
    tries = 0
    while True:
        # In a loop, since a link may break or a rank be lost while the group is formed.
        # One pass over all nodes before each run, as nearly always all are there.
        if not all(connection.is_up for connection in controller.connections):
            await _replace_missing(controller)
        try:
            return await process_group.ensure_formed(controller)
        except NoConnection:
            continue
        except GroupBroken:
            tries += 1
            if tries == _FORMATIONS:
                raise


async def _replace_missing(controller: Controller) -> None:
    """Wait until each node is there or lost, and replace those that are lost."""
    await controller.until(
        lambda: all(each.is_up or each.is_over for each in controller.connections)
    )
    if any(connection.is_over for connection in controller.connections):
        controller.repair = asyncio.create_task(undoing(replace_lost, controller))
        await asyncio.gather(controller.repair, return_exceptions=True)
        controller.repair = None
        if not controller.alive:
            raise controller.loss.anew()
        process_group.check_up_to_date(controller)


async def renew(controller: Controller, ranks: Sequence[int]) -> None:
    """Once all nodes are there, replace the ranks' processes, and form the group.

    So every rank is in its initial state for a retry: none of the run's changes are left, and no
    memory is in use.

    Raises
    ------
    SkyError
        If the cluster is lost, or the ranks do not start.
    """
    await make_whole(controller)
    await process_group.renew_ranks(controller, ranks)
    await make_whole(controller)


def give_up_unreached(
    controller: Controller, connection: Connection, seconds: float, is_wanted: bool
) -> str | None:
    """Give up an unreachable node after waiting for it long enough.

    Parameters
    ----------
    controller
        The cluster.
    connection
        The connection to the node's agent.
    seconds
        For how long it has been unreachable.
    is_wanted
        Whether something runs there or waits for it.

    Returns
    -------
    str or None
        Why to end runs on it, if they should be ended; the cluster then continues when it is back.
    """
    patience = controller.spec.patience
    longest = patience or (IDLE_PATIENCE if controller.alive else START_PATIENCE)
    is_over = seconds >= (patience or RUN_PATIENCE)
    # It can be replaced; and a run that has not started has nothing to lose.
    is_replaced = is_wanted and is_over and can_replace(controller)
    if seconds >= longest or is_replaced:
        connection.declare_lost(
            "is gone: neither this notebook nor the other nodes have reached it for "
            f"{format_duration(seconds)}"
        )
        return None
    if not is_over:
        return None
    left = format_duration(longest - seconds)
    return (
        f"{format_ranks(connection.ranks)} on {connection.name} could not be reached for "
        f"{format_duration(seconds)}, neither by this notebook nor by the other nodes, so the run "
        f"was ended. The variables are kept, and the next cell runs when {connection.name} is "
        f"back: there are {left} left to wait (`--patience`). `%sky restart` starts a new cluster "
        f"at once."
    )


def unreached(controller: Controller) -> list[str]:
    """Return the nodes that nobody has reached for as long as a run waits for them."""
    since = time.monotonic() - (controller.spec.patience or RUN_PATIENCE)  # the loop's clock
    waited = [(each, each.broken_since) for each in controller.unreached]
    return [each.name for each, broke in waited if broke is not None and broke <= since]


async def until_over(
    controller: Controller,
    over: asyncio.Event,
    ranks: Callable[[], Collection[int]],
    notify: Callable[[str], None],
) -> None:
    """Wait until a run is over, checking meanwhile that its nodes can reach each other.

    Parameters
    ----------
    controller
        The cluster.
    over
        Set when the run is over.
    ranks
        Returns the ranks that are still in it.
    notify
        Called with a notice about nodes that cannot reach each other.

    Raises
    ------
    NoConnection
        If they could not for too long, so that the run should be ended.
    """
    if not controller.runtime_env.together or len(controller.connections) < 2:
        await over.wait()
        return
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(peer_checks.EVERY):
            await over.wait()
            return
    patience = controller.spec.patience or RUN_PATIENCE

    def connections() -> list[Connection]:
        return [each for each in controller.connections if each.ranks.intersection(ranks())]

    watching = asyncio.ensure_future(peer_checks.until_cut(connections, notify, patience))
    ending = asyncio.ensure_future(over.wait())
    try:
        await asyncio.wait({watching, ending}, return_when=asyncio.FIRST_COMPLETED)
        if not ending.done():
            raise NoConnection(
                f"{watching.result()} for {format_duration(patience)} (`--patience`), so that "
                "ranks would wait for each other for ever: the run was ended. The variables are "
                "kept, and the next cell goes on when the nodes reach each other again."
            )
    finally:
        watching.cancel()
        ending.cancel()


def not_understood(connection: Connection, what: str, rank: int, run: str) -> RankDone:
    """Return the outcome for a rank whose node has sent a malformed message."""
    text = f"{connection.name} sent what cannot be read ({what}): the run was ended there."
    error: Any = report(SkyError, text)
    return RankDone(rank, run, "error", error, broken=True, arrived=[])


def outcome_not_kept(connection: Connection) -> SkyError:
    """Return why to end a run whose end may be among a node's lost events."""
    return SkyError(
        f"{connection.name} did not keep the outcome of this run while the notebook was not "
        "connected or slow: its disk was full, or there was too much to keep. Run it again."
    )


def record_agent_loss(controller: Controller, connection: Connection, runs: Sequence[str]) -> bool:
    """Record the loss of an agent: of its ranks if they can be replaced, else of the cluster.

    The cluster is not lost either if another notebook has removed the node. A visitor leaves it to
    the notebook to replace one.

    Parameters
    ----------
    controller
        The cluster.
    connection
        The connection to the agent.
    runs
        The runs that were sent to its nodes; they are stopped if the cluster is lost.

    Returns
    -------
    bool
        Whether to call `replace_lost`.
    """
    if 0 in connection.ranks:
        controller.state = replace(controller.state, queue=())
    is_spent = controller.preemptions.are_spent(controller.connections)
    if (can_replace(controller) and not is_spent) or controller.formation.outdated:
        _record_lost_ranks(controller, connection)
        return not (controller.formation.outdated or controller.visits)
    if connection.is_stopped:  # by another notebook
        controller.mark_lost(stops.sentence(controller.spec.name), "", _hosts([connection]))
        return False
    reason = f"is lost: {describe_loss(connection, ranks=connection.ranks)}"
    then = f"{RUN_AGAIN}{_advice(controller)}.{_rest(controller)}"
    if is_spent:
        reason = "has ended: its --max-cost is spent"
        then = f"{RUN_AGAIN}, which may cost as much once more."
    name = controller.spec.name
    controller.mark_lost(f"cluster {name} {reason}.", then, _hosts([connection]))
    if not controller.visits:
        # The other nodes would wait for the lost one for as long as a collective may take.
        there = [each for each in controller.connections if not each.is_over]
        for each, run in itertools.product(there, runs):
            deadline = controller.timeouts.stop
            controller.spawn(request_quietly(each, "interrupt", run=run, deadline=deadline))
    return False


async def replace_lost(controller: Controller) -> None:
    """Replace all lost nodes, unless another process does; if that fails, the cluster is lost."""
    for _ in range(_TRIES):
        lost = [connection for connection in controller.connections if connection.is_over]
        if not lost or not controller.alive or controller.formation.outdated:
            return
        names = ", ".join(connection.name for connection in lost)
        controller.activity = f"replacing {names}"
        try:
            if await _are_stopped(controller):
                controller.mark_lost(stops.sentence(controller.spec.name), "", _hosts(lost))
                return
            async with turns.turn(controller.id, waits=True):
                if not controller.formation.outdated:
                    await _replace(controller, lost, names)
        except Exception as error:  # whatever the error, all waiting tasks must be told
            is_over = {each for each in controller.connections if each.is_over}
            if controller.alive and is_over == set(lost):
                controller.mark_lost(
                    f"cluster {controller.spec.name} is lost: no node could replace {names} "
                    f"({str(error).rstrip('.')}).",
                    f"{RUN_AGAIN}.{_rest(controller)}",
                    _hosts(lost),
                )
                return
        finally:
            controller.activity = ""
            controller.wake()


async def _are_stopped(controller: Controller) -> bool:
    """Return whether another notebook has stopped all machines, even if some still answer.

    A single stopped machine is replaced: its provider may have retired the computer below it.
    """
    provider, connections = controller.provider, controller.connections
    if not isinstance(provider, Stoppable) or not any(each.is_stopped for each in connections):
        return False
    return None not in await provider.stopped_at([each.machine for each in connections])


async def _replace(controller: Controller, lost: list[Connection], names: str) -> None:
    provider = controller.provider
    assert isinstance(provider, Scalable)

    def progress(text: object) -> None:
        controller.notify(f"replacing {names}: {text}")

    machines = [connection.machine for connection in lost]
    removed = await asyncio.gather(*map(_remove, lost))
    known = len(controller.warnings)
    await scaling.grow(controller, controller.spec, provider, progress, lost)
    controller.untold += controller.warnings[known:]
    # A host that replaced itself has ended its previous agent.
    there = {node.host for node in controller.state.nodes}
    left = [
        machine
        for machine, done in zip(machines, removed, strict=True)
        if not done and there.isdisjoint(node.host for node in machine.nodes)
    ]
    await owed_ends.record(origin(controller), left)
    numbers = {node.node for connection in lost for node in connection.machine.nodes}
    hosts = [node.host for node in controller.state.nodes if node.node in numbers]
    done = f"{', '.join(hosts)} took the place of {names}"
    try:
        await provider.release_machines(machines)
    except SkyError as error:  # the cluster is whole, but what it has lost may go on costing money
        controller.untold.append(f"{done}, but {error}")
    else:
        controller.notify(done)


async def _remove(connection: Connection) -> bool:
    """Remove what is left of an agent, unless its machine is silent; return whether that was done.

    Its replacement does not wait for this: if it cannot be done now, it is done later.
    """
    since = connection.broken_since
    if since is not None and asyncio.get_running_loop().time() - since > RUN_PATIENCE / 2:
        return False
    return await owed_ends.try_to_remove(connection.machine)


def can_replace(controller: Controller) -> bool:
    """Return whether lost nodes can be replaced: some are left, and its start is over."""
    return (
        controller.spec.replace
        and (controller.alive or controller.launch is None)
        and isinstance(controller.provider, Scalable)
        and any(not connection.is_over for connection in controller.connections)
    )


def _record_lost_ranks(controller: Controller, connection: Connection) -> None:
    """Report that the ranks of a machine have exited, as its agent would have."""
    ranks = [rank for rank in controller.state.ranks if rank.rank in connection.ranks]
    reason = describe_loss(connection)
    for rank in ranks:
        exited = RankExited(rank.rank, rank.pid or 0, reason, rank.run, "", again=True)
        controller.on_event(connection, exited)


def _hosts(connections: Collection[Connection]) -> list[str]:
    return [node.host for each in connections for node in each.machine.nodes]


def _advice(controller: Controller) -> str:
    """Return advice for a cluster that ends because a node was not replaced."""
    if len(controller.connections) < 2 or not isinstance(controller.provider, Scalable):
        return ""
    if controller.spec.replace:  # which has not helped: all nodes are lost
        return RESTARTS_TOO
    # The others may be about to end too, as those of a job do.
    return f"{RESTARTS_TOO}; with `--replace` it goes on with another node while others are left"


def _rest(controller: Controller) -> str:
    """Return a sentence about what the other nodes of a lost cluster go on costing, if they do."""
    there = [each for each in controller.connections if not each.is_over]
    nodes = [node for connection in there for node in connection.machine.nodes]
    price, spec = total_price(node.price for node in nodes), controller.spec
    if not price or not controller.alive:  # a start that fails ends them all
        return ""
    itself = ""
    if spec.idle_timeout is not None:
        then = "is stopped" if spec.autostop else "ends by itself"
        itself = f", and it {then} after {format_duration(spec.idle_timeout)} without a run"
    return (
        f" Until then, what is left of {spec.name} ({format_count(len(nodes), 'node')}) costs "
        f"{format_dollars(price)} an hour: `%sky down {spec.name}` ends it{itself}."
    )
