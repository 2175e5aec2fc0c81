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
    if cluster.runtime_env.together and ranks > 1:
        framework = "jax" if "jax" in cluster.runtime_env.plugins else "torch"
        parts.append(f"group formed with {framework} {versions.get(framework, '')}".rstrip())
    if (price := cluster.price) is not None:
        parts.append(f"{format_dollars(price)} an hour")
    return ", ".join(parts)
