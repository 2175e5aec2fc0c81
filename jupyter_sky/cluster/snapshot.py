"""What is shown of a cluster, as JSON: to the panel, the sidebar and the command line.

``labextension/src/snapshot.ts`` says the same in TypeScript; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypedDict

from jupyter_sky.cluster.state import ClusterPhase, RankPhase


class Snapshot(TypedDict):
    """A cluster at one moment. ``sent_bytes`` is what left the notebook for it."""

    version: Literal[1]
    cluster: ClusterView
    run: RunView | None
    sent_bytes: int
    nodes: list[NodeView]
    ranks: list[RankView]
    output: OutputView


class ClusterView(TypedDict):
    """The cluster as a whole.

    ``note`` says in words what it is doing, or is empty; ``generation`` is the number of its
    process group; ``price`` is in dollars an hour and ``cost`` in dollars so far, where it has one.
    """

    name: str
    provider: str
    phase: ClusterPhase
    note: str
    generation: int
    nodes: int
    gpu: str | None
    price: float | None
    cost: float | None


class RunState(StrEnum):
    """How a run is going, or how it ended."""

    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class RunView(TypedDict):
    """The present run, or the last one.

    ``background`` says that the kernel does not wait for it. ``started`` is in seconds since the
    epoch, ``seconds`` how long it has taken up to this snapshot, ``title`` a line of its code.
    """

    id: str
    state: RunState
    background: bool
    started: float
    seconds: float
    ranks: list[int]
    title: str


class NodeView(TypedDict):
    """A node; ``gpu`` is the name of its GPUs."""

    node: int
    addr: str
    gpu: str | None


class RankView(TypedDict):
    """A rank.

    ``utilisation`` is between 0 and 1, ``memory`` is used and total in bytes, both of the rank's
    GPU where it has one; ``gpu`` is that GPU's number on the node. ``line`` is the last line that
    it printed, ``trouble`` what is wrong with it. A dead rank is shown as gone.
    """

    rank: int
    node: int
    phase: Literal[RankPhase.STARTING, RankPhase.IDLE, RankPhase.RUNNING, RankPhase.GONE]
    utilisation: float | None
    memory: tuple[int, int] | None
    gpu: int | None
    line: str
    trouble: str | None


class OutputView(TypedDict):
    """The last lines of what a rank printed, as it printed them."""

    rank: int
    text: str
