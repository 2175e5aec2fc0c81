"""Forming the process group (rendezvous): all ranks enter it at once, or all of them leave it.

What is wanted: every rank in one group of torch.distributed before a run begins.

What does not work: asking the ranks and waiting. A rank that has entered the rendezvous is blocked
in C++ until all others have; if one of them cannot come, the rest wait for it and answer nothing.

The solution: each attempt has a generation and a deadline. When a rank reports an error or dies, or
the deadline passes, the agents make every rank leave: by an interrupt or, if the rank is blocked in
C++, by its side thread, which breaks the connections of the rendezvous.

Of several notebooks that find the group broken, one forms it (`node.supervisor.forming_turns`), and
the others hear of that.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Iterable
from dataclasses import replace
from functools import partial
from typing import Any

from jupyter_sky.analysis.cell_names import CellNames
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.listener import describe_loss
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.network import broadcast
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import LOOK_LINK_WITHIN
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.cluster.runtime_env import deadline
from jupyter_sky.errors import GroupBroken, NoConnection, SkyError
from jupyter_sky.formatting import format_duration, format_ranks
from jupyter_sky.serialization.pickling import main_namespace
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.error_report import ErrorReport
from jupyter_sky.transport.protocol.topology import FormRequest, Topology
from jupyter_sky.transport.tasks import shielded

PATIENCE = 0.5
"""Seconds for ranks to come to the end of a rendezvous that is not wanted any more."""

_MAY_SUCCEED_LATER = (RankLost.__qualname__, GroupBroken.__qualname__)


async def ensure_formed(controller: Controller) -> None:
    """Wait until all ranks are alive and in one group, forming it again if it was broken."""

    def are_there() -> bool:  # of those that are being restarted, some may not be
        return controller.state.settled and not controller.formation.lock.locked()

    if controller.state.group and are_there():
        return
    await controller.until(lambda: not controller.formation.lock.locked())
    limit = controller.timeouts.stop + controller.timeouts.start
    async with deadline(limit, "the ranks are still busy"):
        await _until(controller, are_there)

    def is_wanted() -> bool:
        check_up_to_date(controller)
        return not controller.state.group

    await form(controller, is_wanted)


def check_up_to_date(controller: Controller) -> None:
    """Refuse a cluster whose nodes another kernel has changed.

    Raises
    ------
    SkyError
        With what to do.
    """
    if controller.formation.outdated:
        raise SkyError(
            f"cluster {controller.spec.name} was changed by another kernel: run the cell again."
        )


def can_return(controller: Controller) -> bool:
    """Return whether a rank with a new process can enter the present group without the others.

    It can if no framework connects the ranks, which then merely know of each other.
    """
    topology = controller.formation.topology
    is_present = topology and topology["generation"] == controller.state.generation
    return bool(is_present) and not controller.runtime_env.together


async def let_return(controller: Controller, rank: int) -> None:
    """Let a rank with a new process enter the present group, while the others are busy.

    Raises
    ------
    SkyError
        If that fails.
    """
    assert controller.formation.topology is not None
    async with _alone(controller), _abandoned_on_error(controller, patience=0.0):
        controller.formation.errors.pop(rank, None)
        await _enter(controller, controller.formation.topology, (rank,))


async def form(controller: Controller, is_wanted: Callable[[], bool] = lambda: True) -> None:
    """Form a group of a new generation from all ranks of a cluster.

    Parameters
    ----------
    controller
        The cluster.
    is_wanted
        Returns whether there has to be a new group, when no other notebook forms one.

    Raises
    ------
    SkyError
        If a rank cannot enter it; the others have then left the rendezvous.
    """
    async with _alone(controller), _turn(controller, is_wanted) as generation:
        if generation is None:
            return
        async with _abandoned_on_error(controller):
            if controller.state.generation and not controller.runtime_env.reforms:
                await renew_ranks(controller, controller.ranks)
            await _form(controller, generation)


async def restart(controller: Controller, ranks: Collection[int], patience: float) -> None:
    """Replace rank processes and form a group of all ranks; no run begins meanwhile.

    Two notebooks do this one after the other: otherwise one would end ranks that the other has in
    its rendezvous.

    Parameters
    ----------
    controller, ranks, patience
        See `renew_ranks`.

    Raises
    ------
    SkyError
        If the ranks do not start, or cannot form a group.
    """
    async with _alone(controller), _turn(controller, lambda: True) as generation:
        assert generation is not None
        async with _abandoned_on_error(controller):
            every = not controller.runtime_env.reforms
            await renew_ranks(controller, controller.ranks if every else ranks, patience)
            await _form(controller, generation)


@contextlib.asynccontextmanager
async def _alone(controller: Controller) -> AsyncIterator[None]:
    """Let nobody else in this notebook form a group, or begin a run."""
    try:
        async with controller.formation.lock:
            yield
    finally:
        controller.wake()  # who waits for the lock's release


@contextlib.asynccontextmanager
async def _abandoned_on_error(
    controller: Controller, patience: float = PATIENCE
) -> AsyncIterator[None]:
    """Let no rank stay in the rendezvous after an error: it would block there until told to abort.

    Parameters
    ----------
    controller
        The cluster.
    patience
        Seconds that ranks get to complete it where this is cancelled.
    """
    try:
        yield
    except BaseException as error:
        await shielded(abandon(controller, 0.0 if isinstance(error, SkyError) else patience))
        raise


@contextlib.asynccontextmanager
async def _turn(controller: Controller, is_wanted: Callable[[], bool]) -> AsyncIterator[int | None]:
    """Keep other notebooks from forming a group meanwhile.

    Yields
    ------
    int or None
        The generation of the group that this one is to form, if it has to.
    """
    if not controller.has_company:
        yield controller.state.generation + 1 if is_wanted() else None
        return
    try:
        yield await _next_generation(controller, is_wanted)
    finally:
        controller.spawn(request_quietly(controller.connection(0), "end_forming"))


async def _next_generation(controller: Controller, is_wanted: Callable[[], bool]) -> int | None:
    """Wait for the turn to form a group, and return its generation; ``None`` if not needed then."""
    head = controller.connection(0)
    while is_wanted():
        answer = await head.request("begin_forming", generation=controller.state.generation + 1)
        if answer["is_given"]:
            # Nodes answer behind their events: another notebook may just have formed a group.
            # That takes as long as a slow link takes for what it is behind.
            catch_up = [each.request("catch_up", within=None) for each in controller.connections]
            await asyncio.gather(*catch_up)
            if not is_wanted():
                return None
            if answer["is_left"]:  # ranks may wait for others that were not told
                await abandon(controller, PATIENCE)
            generation: int = answer["generation"]
            return max(generation, controller.state.generation + 1)
        # Another notebook forms it; this one hears of that.
        await controller.holds_soon(lambda: not is_wanted())
    return None


async def end_ranks(controller: Controller, ranks: Collection[int], patience: float = 0.0) -> None:
    """Have all nodes end rank processes, of which new ones take the places."""

    def ask(connection: Connection) -> Coroutine[Any, Any, Message]:
        return connection.request(
            "kill", link_within=LOOK_LINK_WITHIN, ranks=list(ranks), patience=patience
        )

    await asyncio.gather(*map(ask, controller.connections))


async def renew_ranks(
    controller: Controller, ranks: Collection[int], patience: float = 0.0
) -> None:
    """End rank processes, and wait until new ones have replaced them.

    Parameters
    ----------
    controller
        The cluster.
    ranks
        The ranks.
    patience
        Seconds that idle ones get to leave. After a loss there are none: JAX would wait for the
        one that is lost.
    """
    pids = {rank.rank: rank.pid for rank in controller.state.ranks if rank.rank in ranks}
    await end_ranks(controller, ranks, patience)
    async with deadline(controller.timeouts.start, "the ranks did not start again"):
        await _until(
            controller,
            lambda: (
                controller.state.settled
                and all(rank.pid != pids.get(rank.rank, -1) for rank in controller.state.ranks)
            ),
        )


async def _until(controller: Controller, condition: Callable[[], bool]) -> None:
    """Wait until a condition of all ranks is true, as long as no node is lost.

    Raises
    ------
    NoConnection
        If one is: its ranks only come again where the caller replaces it.
    """

    def lost() -> list[Connection]:
        return [each for each in controller.connections if each.is_over and controller.alive]

    await controller.until(lambda: bool(lost()) or condition())
    if gone := lost():
        raise NoConnection(f"{describe_loss(gone[0])}.")


async def _form(controller: Controller, generation: int) -> None:
    controller.state = replace(controller.state, generation=generation)
    controller.formation.errors.clear()
    topology = await _topology(controller, generation)
    await _enter(controller, topology, controller.ranks)
    controller.formation.topology = topology


async def _enter(controller: Controller, topology: Topology, ranks: tuple[int, ...]) -> None:
    """Let ranks enter the group of a topology, and wait until they have."""
    runtime_env, sync = controller.runtime_env, controller.sync
    # In a thread: the names for plugins' hooks are pickled, which may wait for the user's thread.
    hooks = CellNames(modules=runtime_env.needed_modules)
    update = await asyncio.to_thread(
        partial(sync.update, runtime_env.needs, main_namespace(), ranks, cell=hooks, at_once=True)
    )
    update.outdated.clear()  # ranks are not told of that here
    assert runtime_env.life is not None
    request: FormRequest = {
        "ranks": list(ranks),
        "topology": topology,
        "life": runtime_env.life,
        "names": update.groups,
    }
    connections = [each for each in controller.connections if each.ranks.intersection(ranks)]
    sync.sent(update)
    try:
        await broadcast.send({**update.blobs, **runtime_env.blobs}, connections)
        await asyncio.gather(*(each.request("form", **request) for each in connections))
        try:
            async with asyncio.timeout(controller.timeouts.form):
                await controller.until(
                    lambda: (
                        not _outside(controller, ranks)
                        or not controller.formation.errors.keys().isdisjoint(ranks)
                    )
                )
        except TimeoutError:
            raise SkyError(_not_entered(controller, ranks)) from None
        _check(controller, ranks)
    except BaseException:
        sync.lost(update)
        raise
    sync.ran(update, {rank: {} for rank in ranks}, well=True)


def _check(controller: Controller, ranks: Iterable[int]) -> None:
    """Raise the error of the first of these ranks that could not join the group.

    Raises
    ------
    GroupBroken
        If another attempt may succeed.
    SkyError
        If it has failed.
    """
    for rank in ranks:
        if error := controller.formation.errors.get(rank):
            kind = GroupBroken if error["type"] in _MAY_SUCCEED_LATER else SkyError
            raise kind(f"rank {rank} could not join the group: {_first_line(error)}")


def _outside(controller: Controller, ranks: Collection[int]) -> list[int]:
    """Return those of these ranks that are not in the present group."""
    state = controller.state
    return [
        rank.rank
        for rank in state.ranks
        if rank.rank in ranks and rank.generation != state.generation
    ]


def _not_entered(controller: Controller, ranks: Collection[int]) -> str:
    """Return a sentence about the ranks that did not enter the group, with advice."""
    plugins, late = controller.runtime_env.plugins, _outside(controller, ranks)
    hooks = f"a hook of {', '.join(plugins)} may hang there, or " if plugins else ""
    return (
        f"{format_ranks(late)} did not enter the process group within "
        f"{format_duration(controller.timeouts.form)}: {hooks}something keeps the nodes from "
        "talking to each other; `%sky logs` shows what the ranks say."
    )


async def _topology(controller: Controller, generation: int) -> Topology:
    """Return the topology, with a free port of the head."""
    nodes = controller.state.nodes
    places: list[Any] = [node.message() for node in nodes]
    try:
        answer = await controller.connection(0).request("reserve", rank=0, addr=nodes[0].addr)
    except SkyError:
        _check(controller, [0])
        raise
    return {
        "cluster": controller.spec.name,
        "task_id": f"{controller.spec.name}-{controller.id}",
        "generation": generation,
        "head_addr": nodes[0].addr,
        "head_port": answer["port"],
        "nodes": places,
        "members": controller.state.members(controller.runtime_env.plugins),
        "shares_files": controller.sync.shares_files,
    }


async def abandon(controller: Controller, patience: float) -> None:
    """Take all ranks out of the rendezvous, unless they finish it in ``patience`` seconds."""
    within = patience + controller.timeouts.stop

    async def abort(connection: Connection) -> None:
        with contextlib.suppress(SkyError):
            await connection.request("abandon", within=within, patience=patience)

    await asyncio.gather(*(abort(each) for each in controller.connections if each.is_up))


def _first_line(error: ErrorReport) -> str:
    lines = error["text"].strip().splitlines() or [error["type"]]
    return f"{error['type']}: {lines[0]}"
