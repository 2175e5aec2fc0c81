"""Sends a run to the agents of its ranks, once the cluster is whole."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from jupyter_sky.cluster.control import process_group, recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import BegunInPart
from jupyter_sky.cluster.namespace import missing
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.answers import Answers
from jupyter_sky.cluster.network.transfer import Transfer
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.sending.outcome import ends_everywhere
from jupyter_sky.cluster.runs.sending.recorded import record_begun
from jupyter_sky.cluster.runs.sending.request import names_for, request_of
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import RankPhase, not_begun, running
from jupyter_sky.errors import ClusterLost, NoConnection, RanksBusy, SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.frames import SharedFields
from jupyter_sky.transport.protocol.events import RankExited
from jupyter_sky.transport.protocol.messages import RunRequest, compact
from jupyter_sky.transport.tasks import cancel_all, either

GiveWay = Callable[[], Awaitable[None]]


def check_ranks(controller: Controller, task: Task) -> None:
    """Refuse a run whose ranks have left the cluster.

    Raises
    ------
    SkyError
        With what to do.
    """
    if task.ranks != controller.ranks and (departed := {*task.ranks}.difference(controller.ranks)):
        raise SkyError(
            f"{format_ranks(departed)} left the cluster before the run began: run it again."
        )
    process_group.check_up_to_date(controller)


async def send_once_whole(
    controller: Controller, run: Run, begin: Callable[[Run], object], give_way: GiveWay | None
) -> bool:
    """Send a run to its ranks, once all ranks of the cluster are there and in one group.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run
        The run.
    begin
        Called just before it is sent.
    give_way
        See `dispatch`.

    Returns
    -------
    bool
        ``False`` if another notebook was first, so that it has begun nowhere and has to wait.

    Raises
    ------
    RanksBusy
        If another notebook was first on some nodes, and the run may have begun on others.
    SkyError
        If it cannot begin.
    """
    for is_first in (True, False):
        await _make_ready(controller, run)
        if run.finished:
            controller.sync.lost(run.task.update)  # what was added since its end was reported
            return True
        run.began, run.generation = time.monotonic(), controller.state.generation
        begin(run)
        _notify(controller, run)
        try:
            await dispatch(controller, run, give_way=give_way)
            break
        except SkyError as why:
            # Ranks that it did not reach have not compared what a run before it has left.
            controller.state = replace(controller.state, cut_off=True)
            may_have_begun = run.id in controller.state.busy_runs
            if isinstance(why, RanksBusy) and not may_have_begun:
                run.sent = False
                return False
            # Where a rank was lost just before, or restarted by another notebook, as was not known
            # here yet, it has begun nowhere, or only on other nodes.
            may_have_begun = may_have_begun or not await controller.holds_soon(
                lambda: not controller.state.group or controller.state.generation != run.generation
            )
            if may_have_begun or run.finished or not is_first:
                if _report_lost(controller, run):
                    raise BegunInPart(str(why)) from None
                raise
            run.sent = False
    run.told.set()
    if run.talk:
        run.talk.on_begun()
    return True


async def _make_ready(controller: Controller, run: Run) -> None:
    """Make the cluster whole, and send again what its ranks have lost of a run's names."""
    sync, update = controller.sync, run.task.update
    await recovery.make_whole(controller)
    while sync.is_outdated(update) and not run.finished:
        await sync.refresh(update)
        await _send_until_over(controller, run)
        await recovery.make_whole(controller)


def _notify(controller: Controller, run: Run) -> None:
    """Show in a run's cell what has happened before, and which ranks began without its names."""
    while controller.untold:
        run.on_notice(controller.untold.pop(0))
    update = run.task.update
    if run.task.code and (note := missing.notice(update.given_anew)):
        run.on_notice(note)
        update.given_anew.clear()


async def _send_until_over(controller: Controller, run: Run) -> None:
    """Send the large parts of a run's names; if it is stopped meanwhile, the next has its turn."""
    transfer = Transfer(run.on_transfer)
    sending = asyncio.ensure_future(
        broadcast.send(run.task.update.blobs, controller.connections, transfer)
    )
    try:
        await either(sending, run.over.wait())
        if not run.finished:
            await sending
    finally:
        await cancel_all([sending])


def _report_lost(controller: Controller, run: Run) -> bool:
    """Report the ranks that were lost before a run began there; return whether there are any."""
    lost = [
        rank
        for rank in controller.state.ranks
        if run.waits_for(rank.rank) and rank.generation != run.generation and rank.trouble
    ]
    for rank in lost:
        again = rank.phase is not RankPhase.DEAD
        run.on_rank_exited(RankExited(rank.rank, 0, rank.trouble or "", run.id, "", again))
    return bool(lost)


async def dispatch(
    controller: Controller, run: Run, ranks: Sequence[int] = (), give_way: GiveWay | None = None
) -> None:
    """Send the request of a run to the agents of its ranks.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run
        The run.
    ranks
        The ranks that are to begin; by default, all of the run.
    give_way
        If another notebook may begin a run at the same moment: the first node is asked before the
        others then, and so decides which run is first. Awaited in between, until those that it has
        carried out before are over on the other nodes too.
    """
    task = run.task
    ranks = ranks or task.ranks
    together = len(ranks) == len(controller.ranks) and not (task.serves or task.script)
    request = await request_of(controller, run, ranks, together)
    blobs = {**task.update.blobs, **task.blobs}
    await record_begun(controller.id, run)
    if run.finished:  # it was stopped meanwhile
        return
    controller.state = running(controller.state, ranks, run.id, together)
    run.sent = True
    chosen = frozenset(ranks)
    nodes = [
        each
        for each in controller.connections
        if len(chosen) == len(controller.ranks) or not chosen.isdisjoint(each.ranks)
    ]
    send = partial(_send_with, blobs) if blobs else _send
    if give_way:
        first, nodes = nodes[:1], nodes[1:]
        unasked = chosen.difference(first[0].ranks)
        try:
            await send(controller, first, {**request, "first": True}, chosen)
            await give_way()
        except SkyError:
            controller.state = not_begun(controller.state, run.id, unasked)
            raise
        if ends_everywhere(controller, run):
            controller.state = not_begun(controller.state, run.id, unasked)
            for rank in unasked:  # they would be stopped before they begin
                run.leave_out(rank)
            return
        controller.state = running(controller.state, [*unasked], run.id)
    await send(controller, nodes, request, chosen)


async def refresh(controller: Controller, updates: Sequence[NamespaceUpdate]) -> None:
    """Add to updates what ranks have lost since they were made, and send its large parts."""
    sync, connections = controller.sync, controller.connections
    while outdated := [each for each in updates if sync.is_outdated(each)]:
        for update in outdated:
            await sync.refresh(update)
            await broadcast.send(update.blobs, connections)


async def _send(
    controller: Controller,
    nodes: Sequence[Connection],
    request: RunRequest,
    ranks: frozenset[int],
) -> None:
    """Send the request of a run to agents."""
    names = request["names"]
    # Encoded once for all nodes: only names, if there are any, differ from node to node.
    shared = {name: value for name, value in request.items() if name != "names" or not names}
    fields = SharedFields({"op": "run", **compact(shared)})
    answers = Answers(partial(_on_refused, controller, request["run"], ranks))
    for connection in nodes:
        own = {"names": names_for(connection, names)} if names else {}
        connection.post(fields, own, answers.expect(connection))
    await answers.wait()


async def _send_with(
    blobs: Mapping[str, memoryview],
    controller: Controller,
    nodes: Sequence[Connection],
    request: RunRequest,
    ranks: frozenset[int],
) -> None:
    """Send the request of a run to agents, each with the blobs that it lacks."""

    async def send(connection: Connection) -> None:
        own: RunRequest = {**request, "names": names_for(connection, request["names"])}
        try:
            ask = partial(connection.request, "run", link_within=None, **own)
            await connection.uploads.put_before(ask, blobs, "this run")
        except SkyError as why:
            _on_refused(controller, request["run"], ranks, connection, why)
            raise

    await asyncio.gather(*[send(connection) for connection in nodes])


def _on_refused(
    controller: Controller,
    run: str,
    ranks: frozenset[int],
    connection: Connection,
    why: SkyError,
) -> None:
    """Record that a node has not begun a run; if its link was lost, it may have begun."""
    if not isinstance(why, ClusterLost | NoConnection):
        controller.state = not_begun(controller.state, run, ranks & connection.ranks)
