"""Describes a cluster in words."""

from __future__ import annotations

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.formatting import format_count, format_dollars


def describe(cluster: Cluster) -> str:
    """Describe a cluster: ``"2 local nodes, 2 ranks on CPU"``."""
    nodes, ranks = len(cluster.state.nodes), len(cluster.all_ranks)
    gpus = sorted({node.gpu for node in cluster.state.nodes if node.gpu})
    versions = dict(cluster.state.versions)
    parts = [format_count(nodes, f"{cluster.provider.name} node")]
    parts.append(f"{format_count(ranks, 'rank')} on {', '.join(gpus) if gpus else 'CPU'}")
    if (library := cluster.runtime_env.connects) and ranks > 1:
        parts.append(f"group formed with {library} {versions.get(library, '')}".rstrip())
    if (price := cluster.price) is not None:
        parts.append(f"{format_dollars(price)} an hour")
    return ", ".join(parts)
