"""Taking up a cluster that another kernel has started: what its agents say is what is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_sky.cluster import version_check
from jupyter_sky.cluster.control import scaling
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.state import reduce, running
from jupyter_sky.providers.base import AgentGone, Machine
from jupyter_sky.transport.events import Formed, Prepared, RankStarted, RunBegan, decode_event
from jupyter_sky.transport.frames import Message

if TYPE_CHECKING:
    from jupyter_sky.cluster.control.controller import Controller


async def attach(
    controller: Controller, machines: Sequence[Machine], leaving: Sequence[Machine]
) -> None:
    """Have a cluster be what it is on these machines.

    Parameters
    ----------
    controller
        The cluster.
    machines
        Those that it is on.
    leaving
        Those that a kernel which was killed wanted to be no part of it.

    Raises
    ------
    AgentGone
        When one of its agents has ended, or is about to.
    """
    welcomes = await controller.connect(machines, since=None)
    for connection, welcome in zip(controller.connections, welcomes, strict=True):
        if welcome["ending"]:
            raise AgentGone("the cluster is about to end")
        _learn(controller, connection, welcome)
    # One of an older version says nothing of it.
    controller.shared = any(welcome.get("shared") for welcome in welcomes)
    _take_up(controller, welcomes)
    if not controller.visits:
        controller.warnings = version_check.check(controller.versions)
    newest = max(rank.generation for rank in controller.state.ranks)
    if not controller.visits and await scaling.clear_up(controller, welcomes, leaving):
        newest += 1  # there may be a group of ranks that are there no more
    controller.state = replace(controller.state, generation=newest, phase="ready")


def _learn(controller: Controller, connection: Connection, welcome: Message) -> None:
    for rank in welcome["ranks"]:
        number, state = rank["rank"], controller.state
        controller.sync.remember(number, rank["names"])
        if rank["pid"]:
            state = reduce(state, RankStarted(number, rank["pid"]))
        state = reduce(state, Formed(number, rank["generation"], None))
        if rank["run"]:
            state = running(state, [number], rank["run"])
        controller.state = state
    if welcome["versions"]:
        controller.take(connection, Prepared(welcome["versions"], {}))
    if welcome["leaving"]:
        controller.take(connection, decode_event(welcome["leaving"]))


def _take_up(controller: Controller, welcomes: Sequence[Message]) -> None:
    """Follow the agents from where the run began that nobody has seen the end of."""
    latest = [each["latest"] for each in welcomes if each["latest"]]
    unseen = [
        each
        for each in latest
        if (each["unseen"] and not controller.visits)
        or any(rank.run == each["run"] for rank in controller.state.ranks)
    ]
    run = unseen[0]["run"] if unseen else None
    if run:
        began = decode_event(unseen[0])
        assert isinstance(began, RunBegan)
        controller.on_take_up(began)
    for connection, welcome in zip(controller.connections, welcomes, strict=True):
        began_here = welcome["latest"] and welcome["latest"]["run"] == run
        connection.follow(welcome["latest"]["n"] if began_here else welcome["last"])
