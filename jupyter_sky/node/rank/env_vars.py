"""The variables that a rank sees: where it stands in the cluster."""

from __future__ import annotations

import json
from typing import Any


def variables(topology: dict[str, Any], rank: int) -> dict[str, str]:
    """Return the environment of a rank in a topology.

    Parameters
    ----------
    topology
        ``cluster``, ``task_id``, ``generation``, ``head_addr``, ``head_port`` and ``nodes``: each
        node as ``providers.machine.Node`` describes it.
    rank
        The rank whose environment this is.

    Returns
    -------
    dict
        ``COMPUTE_POOL``, the whole as JSON, and the variables that SkyPilot sets on its nodes.
    """
    nodes = topology["nodes"]
    here = next(node for node in nodes if rank in node["ranks"])
    place = {
        "cluster": topology["cluster"],
        "task_id": topology["task_id"],
        "generation": topology["generation"],
        "node": here["node"],
        "total_nodes": len(nodes),
        "rank": rank,
        "world_size": sum(len(node["ranks"]) for node in nodes),
        "local_rank": here["ranks"].index(rank),
        "local_world_size": len(here["ranks"]),
        "head_addr": topology["head_addr"],
        "head_port": topology["head_port"],
        "accelerators": here["accelerators"],
        "shared_accelerators": here["shared_accelerators"],
        "interface": here["interface"],
        "peers": [{key: node[key] for key in ("node", "addr", "ranks")} for node in nodes],
    }
    return {
        "COMPUTE_POOL": json.dumps(place),
        "SKYPILOT_NODE_RANK": str(here["node"]),
        "SKYPILOT_NODE_IPS": "\n".join(node["addr"] for node in nodes),
        "SKYPILOT_NUM_NODES": str(len(nodes)),
        # Where a node has no GPU, the processes that torchrun should start there.
        "SKYPILOT_NUM_GPUS_PER_NODE": str(here["accelerators"] or len(here["ranks"])),
        "SKYPILOT_TASK_ID": topology["task_id"],
    }
