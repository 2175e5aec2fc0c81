"""Builds the request of a run, and sends it to the agents of its ranks."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from jupyter_sky.cluster.control import process_group, recovery
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import Done
from jupyter_sky.cluster.errors import BegunInPart
from jupyter_sky.cluster.inspection import unmatched
from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.namespace import missing
from jupyter_sky.cluster.namespace.update import NamespaceUpdate
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.answers import Answers
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import RankPhase, not_begun, ranks_done, running
from jupyter_sky.errors import ClusterLost, NoConnection, RanksBusy, SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.frames import SharedFields
from jupyter_sky.transport.protocol.events import RankDone, RankExited, RunBegan
from jupyter_sky.transport.protocol.messages import NameGroup, RunRequest, Script, said
from jupyter_sky.transport.rank_ranges import among, to_ranges

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
) -> None:
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

    Raises
    ------
    RanksBusy
        If another notebook was first; where the run was not sent then, it has begun nowhere.
    SkyError
        If it cannot begin.
    """
    sync, update = controller.sync, run.task.update
    for is_first in (True, False):
        await recovery.make_whole(controller)
        while sync.is_outdated(update):  # something that ranks were sent before it was lost
            await sync.refresh(update)
            await recovery.make_whole(controller)
        if run.finished:
            sync.lost(update)  # what was added to it since its end was reported
            return
        run.began, run.generation = time.monotonic(), controller.state.generation
        begin(run)
        if run.task.code and (note := missing.notice(update.given_anew)):
            run.on_notice(note)
            update.given_anew.clear()
        try:
            await dispatch(controller, run, give_way=give_way)
            break
        except SkyError as why:
            # Ranks that it did not reach have not compared what a run before it has left.
            controller.state = replace(controller.state, cut_off=True)
            may_have_begun = run.id in controller.state.busy_runs
            if isinstance(why, RanksBusy) and not may_have_begun:
                run.sent = False
                raise
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
    update = task.update
    names = update.groups
    asked = {name.partition(":")[0] for each in task.values.values() for name in each}
    script = await _with_port(controller, task)
    is_whole = len(ranks) == len(controller.ranks) and not (task.serves or script)
    after_cut_off = is_whole and controller.state.cut_off
    request: RunRequest = {
        "run": run.id,
        "code": task.code,
        "call": task.call,
        "script": script,
        "cells": dict(task.cells),
        "place": (task.place.title, task.place.above),
        "generation": controller.state.generation,
        "values": {rank: list(asked) for rank, asked in task.values.items()},
        "watched": sorted(task.update.watched | asked),
        "outdated": task.update.outdated,
        "names": names,
        "show": to_ranges(task.show),
        "title": task.title,
        "everyone": to_ranges(task.ranks),
        "ranks": to_ranges(ranks),
        "together": fail_together(controller, task),
        "serves": task.serves,
        "talks": task.talks,
        "records": list(task.records),
        "deadline": controller.timeouts.stop,
        "debugging": task.debugging,
        "checkpoint": task.attempt.checkpoint,
        "program": None if task.program is None else list(task.program),
        "after_cut_off": after_cut_off,
        "first": False,
        "client": "",
    }
    blobs = {**update.blobs, **task.blobs}
    await _record_begun(controller.id, run)
    if run.finished:  # it was stopped meanwhile
        return
    controller.state = running(controller.state, ranks, run.id, is_whole)
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


def note_names(controller: Controller, task: Task, done: Sequence[RankDone]) -> None:
    """Note what ranks have of the notebook's names after their parts of a run."""
    sync, update = controller.sync, task.update
    for well in (True, False):
        these = [event for event in done if (event.outcome == "ok") is well]
        if these:
            sync.ran(update, {event.rank: event.bound for event in these}, well=well)
    for event in done:
        if event.arrived is not None and event.outcome != "ok":
            sync.missed(update, event.rank, event.arrived)


def may_be_unmatched(run: Run, done: Sequence[Done]) -> bool:
    """Return whether a run is over with these parts, and ranks have begun unequal collectives."""
    if len(done) != len(run.waiting) or run.is_ending:
        return False
    return unmatched.may_be_there([*run.done.values(), *(event for _, event in done)])


async def give_up_unmatched(
    controller: Controller, run: Run, done: Sequence[Done], then: Callable[[], object]
) -> None:
    """Have the group formed again if ranks have begun collectives that others never will.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run, done
        The run, and its last parts.
    then
        Called once that is known.
    """
    try:
        if said := await unmatched.find(controller, run.task.ranks):
            run.on_notice(said)
            broken = (replace(event, broken=True) for _, event in done)
            controller.state = ranks_done(controller.state, broken)
    finally:
        then()


def task_of(began: RunBegan, known: Sequence[int], asked: Mapping[int, Sequence[str]]) -> Task:
    """Return the task of a run that another kernel began."""
    ranks, show = tuple(among(began.ranks, known)), tuple(among(began.show, known))
    return Task(ranks, values=asked, show=show, title=began.title)


def ends_everywhere(controller: Controller, run: Run) -> bool:
    """Return whether ranks that have not begun a run are not to begin it any more."""
    if run.finished or run.stopped:
        return True
    return run.failed and fail_together(controller, run.task)


def fail_together(controller: Controller, task: Task) -> bool:
    """Return whether a rank that fails in a run stops the others."""
    if task.script:
        return task.script["together"]
    if task.serves:
        return False
    return controller.runtime_env.together and len(controller.ranks) > 1


async def _with_port(controller: Controller, task: Task) -> Script | None:
    """Return the script of a run, with a port on which its processes find each other.

    There is a port only if the head takes part.
    """
    if not task.script or 0 not in task.ranks:
        return task.script
    addr = controller.state.nodes[0].addr
    answer = await controller.connection(0).request("reserve", rank=0, addr=addr)
    return {**task.script, "port": answer["port"]}


def _names_for(connection: Connection, names: Sequence[NameGroup]) -> list[NameGroup]:
    """Return the groups of names that the ranks of a node get."""
    here = connection.ranks
    return [
        {**group, "ranks": sorted(own)}
        for group in names
        if (own := here.intersection(group["ranks"]))
    ]


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
    fields = SharedFields({"op": "run", **said(shared)})
    answers = Answers(partial(_on_refused, controller, request["run"], ranks))
    for connection in nodes:
        own = {"names": _names_for(connection, names)} if names else {}
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
        own: RunRequest = {**request, "names": _names_for(connection, request["names"])}
        try:
            ask = partial(connection.request, "run", link_within=None, **own)
            await connection.uploads.put_before(ask, blobs, "this run")
        except SkyError as why:
            _on_refused(controller, request["run"], ranks, connection, why)
            raise

    await asyncio.gather(*[send(connection) for connection in nodes])


def record_waiting(cluster: str, run: Run, has_others: bool) -> asyncio.Task[None] | None:
    """Record that a run waits for its turn, for a kernel that attaches after the end of this one.

    Parameters
    ----------
    cluster
        The cluster's id.
    run
        The run; what has no title, as a command, is not recorded.
    has_others
        Whether it waits for others; in the background its cell is over before it is sent anyway.

    Returns
    -------
    asyncio.Task or None
        To be awaited before more is recorded of the run, which replaces this.
    """
    if run.task.title and (has_others or run.in_background):
        return asyncio.create_task(_record(cluster, run, waits=True))
    run.kept.set()
    return None


async def settle(cluster: str, run: Run) -> None:
    """Record that a run owes its kernel nothing, if anything was recorded of it."""
    if run.is_recorded:
        await asyncio.to_thread(owed_runs.settle, cluster, run.id)


async def _record_begun(cluster: str, run: Run) -> None:
    """Record the names that a run is asked for, and that it does not wait any more."""
    if run.task.values or run.task.then:
        await _record(cluster, run, waits=False)
    else:
        await settle(cluster, run)


async def _record(cluster: str, run: Run, waits: bool) -> None:
    task = run.task
    owed = task.title or "a run", task.values, task.then
    run.is_recorded = True
    with contextlib.suppress(OSError):
        await asyncio.to_thread(owed_runs.record, cluster, run.id, *owed, waits)
    run.kept.set()
