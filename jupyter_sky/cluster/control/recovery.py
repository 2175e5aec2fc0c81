"""Recovery from lost nodes: others take their place, and the ranks that are left go on."""

from __future__ import annotations

from jupyter_sky.cluster.control import scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.control.shutdown import remove
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.formatting import format_ranks
from jupyter_sky.providers.base import Scalable
from jupyter_sky.transport.events import RankExited

_TRIES = 3
"""How often it is begun anew because yet another node was lost meanwhile."""


def agent_lost(controller: Controller, connection: Connection) -> bool:
    """Record the loss of an agent: of its ranks if others can replace them, else of the cluster.

    Returns
    -------
    bool
        Whether `replace_lost` is to be called.
    """
    if _can_replace(controller):
        _record_lost_ranks(controller, connection)
        return True
    ranks = format_ranks(connection.ranks)
    where = f" on {connection.name}" if connection.machine.nodes[0].name else ""
    controller.mark_lost(
        f"cluster {controller.spec.name} is lost: "
        f"the agent of {ranks}{where} {connection.trouble}.",
        _advice(controller),
    )
    return False


async def replace_lost(controller: Controller) -> None:
    """Put new nodes in the place of all that are lost; if none come, the cluster is lost."""
    for _ in range(_TRIES):
        lost = [connection for connection in controller.connections if connection.is_over]
        if not lost or not controller.alive:
            return
        names = ", ".join(connection.name for connection in lost)
        controller.activity = f"replacing {names}"
        try:
            await _replace(controller, lost, names)
        except Exception as error:  # whatever it is, every task that waits has to be told
            if {each for each in controller.connections if each.is_over} == set(lost):
                controller.mark_lost(
                    f"cluster {controller.spec.name} is lost: nothing takes the place of {names} "
                    f"({str(error).rstrip('.')})."
                )
                return
        finally:
            controller.activity = ""
            controller.wake()


async def _replace(controller: Controller, lost: list[Connection], names: str) -> None:
    provider = controller.provider
    assert isinstance(provider, Scalable)

    def progress(text: object) -> None:
        controller.notify(f"replacing {names}: {text}")

    for connection in lost:
        await remove(connection.machine)
    await scaling.grow(controller, controller.spec, provider, progress, lost)
    await provider.give_back([connection.machine for connection in lost])
    numbers = {node.node for connection in lost for node in connection.machine.nodes}
    hosts = [node.host for node in controller.state.nodes if node.node in numbers]
    controller.notify(f"{', '.join(hosts)} took the place of {names}")


def _can_replace(controller: Controller) -> bool:
    """Return whether others can take the place of nodes that are lost: some have to be left."""
    return (
        controller.spec.replace
        and isinstance(controller.provider, Scalable)
        and any(not connection.is_over for connection in controller.connections)
    )


def _record_lost_ranks(controller: Controller, connection: Connection) -> None:
    """Report that the ranks of a machine have exited, as its agent would have."""
    ranks = [rank for rank in controller.state.ranks if rank.rank in connection.ranks]
    reason = f"the agent of {connection.name} {connection.trouble}"
    for rank in ranks:
        exited = RankExited(rank.rank, rank.pid or 0, reason, rank.run, "", again=True)
        controller.on_event(connection, exited)


def _advice(controller: Controller) -> str:
    """Return what to add where a cluster ends because of a node that was not replaced."""
    if len(controller.connections) < 2 or not isinstance(controller.provider, Scalable):
        return ""
    return " (`%sky restart` does so too); with `--replace` it goes on with another node"
