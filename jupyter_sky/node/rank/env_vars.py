"""The environment variables that tell a rank where it is in the cluster."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence

from jupyter_sky.transport.protocol.topology import NodePlace, RankPlace, Topology


def variables(topology: Topology, rank: int) -> dict[str, str]:
    """Return the environment of a rank in a cluster.

    Parameters
    ----------
    topology
        The nodes of the cluster.
    rank
        The rank whose environment this is.

    Returns
    -------
    dict
        ``COMPUTE_POOL``, a `RankPlace` as JSON, and the variables that SkyPilot sets on its nodes.
    """
    nodes = topology["nodes"]
    here = next(node for node in nodes if rank in node["ranks"])
    place: RankPlace = {
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
        "peers": [
            {"node": node["node"], "addr": node["addr"], "ranks": node["ranks"]} for node in nodes
        ],
    }
    return {"COMPUTE_POOL": json.dumps(place), **_of_skypilot(topology, here, nodes)}


def script_variables(
    topology: Topology, rank: int, everyone: Collection[int], port: int
) -> dict[str, str]:
    """Return the environment of a script beside a rank.

    Parameters
    ----------
    topology
        The nodes of the cluster.
    rank
        The rank whose node it runs on.
    everyone
        The ranks on whose nodes the script runs: only these nodes count.
    port
        A free port of the head; 0 if the head does not take part.

    Returns
    -------
    dict
        The variables that SkyPilot sets, the interface that leads to the other nodes, and the
        rendezvous for processes of the script.
    """
    nodes = [node for node in topology["nodes"] if not set(node["ranks"]).isdisjoint(everyone)]
    here = next(node for node in nodes if rank in node["ranks"])
    found = _of_skypilot(topology, here, nodes)
    # What the setup of a task finds these two under.
    found |= {
        "SKYPILOT_SETUP_NODE_RANK": found["SKYPILOT_NODE_RANK"],
        "SKYPILOT_SETUP_NODE_IPS": found["SKYPILOT_NODE_IPS"],
    }
    if port:
        found |= {"MASTER_ADDR": nodes[0]["addr"], "MASTER_PORT": str(port)}
    if here["interface"]:
        found |= dict.fromkeys(("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME"), here["interface"])
    return found


def _of_skypilot(topology: Topology, here: NodePlace, nodes: Sequence[NodePlace]) -> dict[str, str]:
    return {
        "SKYPILOT_NODE_RANK": str(nodes.index(here)),
        "SKYPILOT_NODE_IPS": "\n".join(node["addr"] for node in nodes),
        "SKYPILOT_NUM_NODES": str(len(nodes)),
        # On a node without a GPU, it is the number of processes that torchrun should start.
        "SKYPILOT_NUM_GPUS_PER_NODE": str(here["accelerators"] or len(here["ranks"])),
        "SKYPILOT_TASK_ID": topology["task_id"],
    }
