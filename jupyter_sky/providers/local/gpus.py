"""Local nodes, their ranks, and how they share the GPUs of this machine."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.base import Node, Standing
from jupyter_sky.providers.spec import Accelerator, ClusterSpec

_LOOPBACK = "127.0.0.1"

Devices = Sequence[tuple[str, str]]
"""Id and name of each GPU."""


def gpus() -> list[tuple[str, str]]:
    """Return id and name of the NVIDIA GPUs that this process may use."""
    names = _all_gpus()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return [(str(number), name) for number, name in enumerate(names)]
    ids = [each.strip() for each in allowed.split(",") if each.strip() not in ("", "-1")]
    known = dict(enumerate(names))
    return [(each, known.get(int(each), "") if each.isdigit() else "GPU") for each in ids]


def _all_gpus() -> list[str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()


def check(wanted: Accelerator | str, nodes: int) -> None:
    """Refuse more GPUs than there are.

    Raises
    ------
    UsageError
        With what this machine has.
    """
    names = [name for _, name in gpus()]
    if isinstance(wanted, str):
        wanted = Accelerator(wanted)
    name, count = wanted.name, wanted.count
    fitting = [gpu for gpu in names if wanted.fits(gpu)]
    if len(fitting) < count * nodes:
        here = ", ".join(sorted(set(names))) or "no GPU"
        some = f"{len(fitting)} of them" if fitting else here
        raise UsageError(
            f"{count * nodes} × {name} was asked for, but this machine has {some}: "
            "leave the GPU out to use what is here."
        )


def share(spec: ClusterSpec, devices: Devices) -> list[Node]:
    """Return the nodes of a cluster; ranks share GPUs only if they have to."""
    wanted = spec.accelerator if isinstance(spec.accelerator, Accelerator) else None
    each = wanted.count if wanted else len(devices) // spec.nodes
    per_node = spec.procs_per_node or max(1, each)
    shared = bool(devices) and each < per_node
    nodes = []
    for number in range(spec.nodes):
        ranks = tuple(range(number * per_node, (number + 1) * per_node))
        count = each or min(1, len(devices))
        name = devices[0][1] if devices else None
        nodes.append(Node(number, _LOOPBACK, "lo", ranks, count, shared, name))
    return nodes


def share_with_more(standing: Standing, devices: Devices) -> tuple[list[Node], list[Node]]:
    """Return the nodes that a cluster has, and those that come, which are like them.

    Where that takes more GPUs than there are, ranks share them from now on: all of them, since a
    group is of one kind.
    """
    there, lost = standing.nodes, {node.node: node for node in standing.lost}
    like = there[0]
    next_rank = sum(len(node.ranks) for node in [*there, *standing.lost])
    come = []
    for number in standing.numbers:
        node = lost.get(number)
        if node is None:
            ranks = tuple(range(next_rank, next_rank + len(like.ranks)))
            node = replace(like, node=number, ranks=ranks, port=0)
            next_rank += len(ranks)
        come.append(node)
    enough = len(devices) >= like.accelerators * (len(there) + len(come))
    shared = bool(devices) and (like.shared_accelerators or not enough)
    return (
        [replace(node, shared_accelerators=shared) for node in there],
        [replace(node, shared_accelerators=shared) for node in come],
    )


def ranks_of(node: Node, devices: Devices) -> list[dict[str, Any]]:
    """Return the ranks of a node, as its agent is told of them."""
    return [{"rank": rank, "env": _visible(node, rank, devices)} for rank in node.ranks]


def _visible(node: Node, rank: int, devices: Devices) -> dict[str, str]:
    if not devices:
        return {}
    first = node.node * node.accelerators
    place = rank if node.shared_accelerators else first + node.ranks.index(rank)
    return {"CUDA_VISIBLE_DEVICES": devices[place % len(devices)][0]}
