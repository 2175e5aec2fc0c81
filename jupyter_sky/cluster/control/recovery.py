"""Replacing nodes that are lost: others take their place, and the ranks that are left go on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from jupyter_sky.cluster.control import scaling
from jupyter_sky.cluster.control.shutdown import remove
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.providers.base import Scalable
from jupyter_sky.transport.events import RankExited

if TYPE_CHECKING:
    from jupyter_sky.cluster.control.controller import Controller

_TRIES = 3
"""How often it is begun anew because yet another node was lost meanwhile."""


def can_replace(controller: Controller) -> bool:
    """Return whether others can take the place of nodes that are lost: some have to be left."""
    return (
        controller.spec.replace
        and isinstance(controller.provider, Scalable)
        and any(not connection.is_over for connection in controller.connections)
    )


def advice(controller: Controller) -> str:
    """Return what there is to add where a cluster ends because of a node that was not replaced."""
    if len(controller.connections) < 2 or not isinstance(controller.provider, Scalable):
        return ""
    return " (`%sky restart` does so too); with `--replace` it goes on with another node"


def miss(controller: Controller, connection: Connection) -> None:
    """Note that the ranks of a machine are lost, and that others come in their place."""
    ranks = [rank for rank in controller.state.ranks if rank.rank in connection.ranks]
    reason = f"the agent of {connection.name} {connection.trouble}"
    for rank in ranks:
        gone = RankExited(rank.rank, rank.pid or 0, reason, rank.run, "", again=True)
        controller.take(connection, gone)


async def replace_lost(controller: Controller) -> None:
    """Have others take the place of all nodes that are lost; if none do, the cluster is lost."""
    for _ in range(_TRIES):
        lost = [connection for connection in controller.connections if connection.is_over]
        if not lost or not controller.alive:
            return
        names = ", ".join(connection.name for connection in lost)
        controller.doing = f"replacing {names}"
        try:
            await _replace(controller, lost, names)
        except Exception as error:  # whatever it is, who waits has to hear of it
            if {each for each in controller.connections if each.is_over} == set(lost):
                controller.lose(
                    f"cluster {controller.spec.name} is lost: nothing takes the place of {names} "
                    f"({str(error).rstrip('.')})."
                )
                return
        finally:
            controller.doing = ""
            controller.wake()


async def _replace(controller: Controller, lost: list[Connection], names: str) -> None:
    provider = controller.provider
    assert isinstance(provider, Scalable)

    def progress(text: object) -> None:
        controller.on_notice(f"replacing {names}: {text}")

    for connection in lost:
        await remove(connection.machine)
    await scaling.grow(controller, replace(controller.spec), provider, progress, lost)
    await provider.release_machines([connection.machine for connection in lost])
    machines = controller.state.nodes
    places = {node for connection in lost for node in connection.machine.nodes}
    hosts = [node.host for node in machines if node.node in {place.node for place in places}]
    controller.on_notice(f"{', '.join(hosts)} took the place of {names}")
