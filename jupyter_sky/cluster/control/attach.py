"""Attaching to a cluster of another kernel: its state is restored from its agents."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import process_group, recovery, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.inventory import owed_runs
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import end_of_agent
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.cluster.state import ClusterPhase, reduce, running
from jupyter_sky.providers.base import AgentGone, Machine
from jupyter_sky.transport.protocol.events import (
    Formed,
    Prepared,
    RankExited,
    RankStarted,
    RunBegan,
    decode_event,
)
from jupyter_sky.transport.protocol.messages import RankStatus, Welcome
from jupyter_sky.transport.rank_ranges import among, to_ranges


async def restore(
    controller: Controller, machines: Sequence[Machine], leaving: Sequence[Machine]
) -> None:
    """Connect to the agents of a cluster, and restore its state from their messages.

    Parameters
    ----------
    controller
        The cluster.
    machines
        Its machines.
    leaving
        Machines that a killed kernel was about to remove.

    Raises
    ------
    AgentGone
        If one of its agents has ended and is not this kernel's to replace, or is about to end.
    ClusterLost
        If one ends meanwhile, and is not replaced.
    """
    welcomes, gone = await controller.connect(machines, since=None)
    controller.shared = any(welcome["shared"] for welcome in welcomes.values())
    is_ours = welcomes and not (controller.visits or controller.shared)
    if gone and not (is_ours and recovery.can_replace(controller)):
        raise next(iter(gone.values()))
    for connection, welcome in welcomes.items():
        if welcome["ending"]:
            raise AgentGone("the cluster is ending")
        _restore_ranks(controller, connection, welcome)
    own = [rank for each, welcome in welcomes.items() for rank in _own_ranks(each, welcome)]
    newest = max((max(rank["generation"], rank["forming"] or 0) for rank in own), default=0)
    # Before events arrive: that a rank enters this group is no news of another kernel.
    controller.state = replace(controller.state, generation=newest)
    controller.has_company = controller.shared
    followed = await _follow_from_unseen_run(controller, welcomes, gone)
    for connection, end in gone.items():  # others take their places, at the latest for the next run
        connection.declare_lost(*end_of_agent(end, heard=time.time()))
    if not controller.visits:
        controller.warnings = version_check.check(controller.versions)
        await scaling.finish_interrupted(controller, [*welcomes.values()], leaving)
        if any(rank["forming"] for rank in own):
            # Some may wait for ranks that a killed kernel has not told, but another notebook may
            # also be about to form a group, in its own time.
            patience = controller.timeouts.form if controller.shared else process_group.PATIENCE
            await process_group.abandon(controller, patience)
        if controller.shared:
            # Others have to know before this kernel's first run: see `dispatch`.
            await request_quietly(controller.connections[0], "added", by=controller.context.client)
        if any(rank["group_size"] != len(controller.ranks) for rank in own):
            newest += 1  # the next run forms a group of the ranks that there are
    if controller.state.phase is ClusterPhase.LOST:  # meanwhile
        raise controller.loss.anew()
    # Whether the other kernel's last run was cut off is not known here.
    state = replace(controller.state, generation=newest, phase=ClusterPhase.READY, cut_off=True)
    controller.state = state
    if not controller.visits:  # last, as who takes them has to tell of them
        take = owed_runs.take_left
        left = await asyncio.to_thread(take, controller.id, controller.shared, but=followed)
        controller.warn(each.sentence for each in left)


def _own_ranks(connection: Connection, welcome: Welcome) -> list[RankStatus]:
    """Return what an agent says about the ranks that are its own."""
    # Another is from another node, or was left by a kernel that was killed while scaling.
    return [rank for rank in welcome["ranks"] if rank["rank"] in connection.ranks]


def _restore_ranks(controller: Controller, connection: Connection, welcome: Welcome) -> None:
    for rank in _own_ranks(connection, welcome):
        number, state = rank["rank"], controller.state
        controller.sync.remember(number, rank["names"])
        if rank["pid"]:
            state = reduce(state, RankStarted(number, rank["pid"]))
        state = reduce(state, Formed(number, rank["generation"], None))
        if reason := rank.get("given_up"):
            state = reduce(state, RankExited(number, 0, reason, None, "", again=False))
        if rank["run"]:
            state = running(state, [number], rank["run"])
        controller.state = state
    if welcome["versions"]:
        controller.on_event(connection, Prepared(welcome["versions"], {}))
    if welcome["leaving"]:
        controller.on_event(connection, decode_event(welcome["leaving"]))


async def _follow_from_unseen_run(
    controller: Controller, welcomes: Mapping[Connection, Welcome], gone: Iterable[Connection]
) -> str | None:
    """Ask for events, including all of a run whose end no notebook has seen; return that run.

    Ranks of lost nodes are taken to be in it yet: what they have done of it is nowhere.
    """
    own = _latest_runs(controller, welcomes)
    unseen = (
        latest
        for latest in own.values()
        if (latest["unseen"] and not controller.visits)
        or latest["run"] in controller.state.busy_runs
    )
    run = None
    if latest := next(unseen, None):
        run = latest["run"]
        told = {rank for each in own.values() if each["run"] == run for rank in each["ranks"]}
        begun = [each["latest"] for each in welcomes.values() if each["latest"]]
        ranges = [each["ranks"] for each in begun if each["run"] == run]
        asked = {rank for each in ranges for rank in among(each, controller.ranks)}
        lost = asked.intersection(rank for each in gone for rank in each.ranks)
        controller.state = running(controller.state, sorted(lost), run)
        told |= lost
        # The kernel ended before it had told the others. A node that lies only ends its own run.
        untold = asked - told
        owed = await asyncio.to_thread(owed_runs.find, controller.id, run)
        began = decode_event({**latest, "ranks": to_ranges(told)})
        assert isinstance(began, RunBegan)
        controller.listener.on_unseen_run(began, owed, sorted(untold))
    for connection, welcome in welcomes.items():
        latest, last = own.get(connection), welcome["last"]
        connection.follow(latest["n"] if latest and latest["run"] == run else last, known=last)
    return run


def _latest_runs(
    controller: Controller, welcomes: Mapping[Connection, Welcome]
) -> dict[Connection, dict[str, Any]]:
    """Return the latest run on each node that has one, with the ranks of the node in it.

    What a node says of others' ranks does not count.
    """
    found: dict[Connection, dict[str, Any]] = {}
    for connection, welcome in welcomes.items():
        latest = welcome["latest"]
        if latest and (ranks := among(latest["ranks"], connection.ranks)):
            found[connection] = {**latest, "ranks": ranks}
    return found
