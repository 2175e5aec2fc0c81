"""The hooks of plugins in a notebook that is connected to a cluster of ``%%sky`` cells."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Protocol

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runtime_env import ClientHooks


class SessionObserver(Protocol):
    """Called when clusters are connected and disconnected, in the user's thread."""

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """A cluster was connected; ``is_new`` says that nothing has run on it yet."""

    def ending(self, cluster: Cluster) -> None:
        """A cluster is about to be ended."""

    def disconnected(self, cluster: Cluster) -> None:
        """The session has dropped a cluster."""


class ClientPlugins:
    """Enters and leaves ``around_client``; a `SessionObserver`.

    A cluster can be used without the plugins' hooks in the notebook: their errors are shown, and
    the cell continues.
    """

    def __init__(self) -> None:
        self._entered: dict[str, tuple[Cluster, ClientHooks]] = {}

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Enter the plugins of a cluster."""
        if client := cluster.runtime_env.client:
            self._entered[cluster.id] = cluster, client
            with _shown(cluster):
                client.enter(None, cluster)

    def ending(self, cluster: Cluster) -> None:
        """Leave the plugins of a cluster while it is still up."""
        self._leave(cluster.id)

    def disconnected(self, cluster: Cluster) -> None:
        """Leave the plugins of a cluster that is gone or no longer connected."""
        self._leave(cluster.id)

    def close(self) -> None:
        """Leave the plugins of all clusters."""
        for identity in reversed(list(self._entered)):
            self._leave(identity)

    def _leave(self, identity: str) -> None:
        if identity in self._entered:
            cluster, client = self._entered.pop(identity)
            with _shown(cluster):
                client.leave()


@contextlib.contextmanager
def _shown(cluster: Cluster) -> Iterator[None]:
    """Show an error of a plugin instead of raising it."""
    try:
        yield
    except Exception as error:
        where = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
        print(f"{cluster.name}: {error}{where}", file=sys.stderr)
