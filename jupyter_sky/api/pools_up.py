"""The active pools of this process, for the displays that show them to the user."""

from __future__ import annotations

from typing import Protocol

from jupyter_sky.cluster.cluster import Cluster


class PoolObserver(Protocol):
    """An observer of pools' clusters; called in the thread that uses the pool."""

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Handle that a pool has its cluster."""

    def disconnected(self, cluster: Cluster) -> None:
        """Handle that a pool is about to end its cluster."""


_clusters: list[Cluster] = []
_observers: list[PoolObserver] = []


def clusters() -> list[Cluster]:
    """Return the clusters of all active pools."""
    return list(_clusters)


def observe(observer: PoolObserver) -> None:
    """Notify an observer of every new pool, until `leave`."""
    _observers.append(observer)


def leave(observer: PoolObserver) -> None:
    """Stop notifying an observer."""
    _observers.remove(observer)


def begin(cluster: Cluster) -> None:
    """Report that a pool has its cluster."""
    _clusters.append(cluster)
    for observer in list(_observers):
        observer.connected(cluster, is_new=True)


def end(cluster: Cluster) -> None:
    """Report that a pool is about to end its cluster, if it was reported before."""
    if cluster not in _clusters:
        return
    _clusters.remove(cluster)
    for observer in list(_observers):
        observer.disconnected(cluster)
