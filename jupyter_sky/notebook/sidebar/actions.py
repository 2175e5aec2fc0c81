"""What is done with a cluster beside its runs: by a line of ``%sky``, or by the sidebar."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.notebook.commands.control import scale
from jupyter_sky.notebook.session import Session
from jupyter_sky.notebook.validation import choose_ranks


def interrupt(cluster: Cluster, within: float = 0.0) -> str:
    """Stop what runs, wait ``within`` so many seconds for it, and say so."""
    if not cluster.interrupt():
        return f"{cluster.name}: nothing is running"
    if within and cluster.wait_until_idle(within):
        return f"{cluster.name}: stopped"
    return f"{cluster.name}: stopping"


def restart(cluster: Cluster, chosen: str | Sequence[int] | None) -> str:
    """Start ranks anew, and say so."""
    ranks = choose_ranks(cluster, chosen, "%sky restart")
    cluster.restart(ranks)
    return f"{cluster.name}: {format_ranks(ranks)} started anew, with empty namespaces"


class Actions:
    """Does what the sidebar asks for.

    Parameters
    ----------
    session
        The clusters of this notebook.
    note
        Told why the last action on a cluster did not work, or that it did: the person may have gone
        elsewhere before it was over.
    """

    def __init__(self, session: Session, note: Callable[[Cluster, str], None]) -> None:
        self._session = session
        self._note = note

    def do(self, request: Mapping[str, Any]) -> str:
        """Do what a request asks for and say so; in a thread beside the person's.

        Raises
        ------
        SkyError
            When it cannot be done.
        """
        cluster = self._cluster(request.get("cluster"))
        self._note(cluster, "")
        try:
            return self._do(cluster, request)
        except SkyError as error:
            self._note(cluster, str(error))
            raise

    def _do(self, cluster: Cluster, request: Mapping[str, Any]) -> str:
        match request:
            case {"action": "interrupt"}:
                return interrupt(cluster)
            case {"action": "restart", "ranks": list() | None as ranks}:
                self._check(cluster)
                return restart(cluster, ranks)
            case {"action": "scale", "nodes": int() as nodes}:
                self._check(cluster)
                return f"{cluster.name}: {scale(self._session, cluster, nodes)}"
            case {"action": "down"}:
                return self._session.down(cluster.name)
        raise UsageError(f"this version of jupyter_sky does not know {request.get('action')!r}.")

    def _cluster(self, identity: object) -> Cluster:
        for cluster in self._session.known():
            if cluster.id == identity:
                return cluster
        raise SkyError("this notebook is not connected to that cluster any more.")

    def _check(self, cluster: Cluster) -> None:
        if not cluster.alive:
            raise SkyError(
                f"cluster {cluster.name} is lost: run its cell again, or `%sky restart` there."
            )
