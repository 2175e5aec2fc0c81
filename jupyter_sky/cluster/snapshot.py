"""Snapshots of a run and its cluster, as JSON, for the cell, the sidebar and the terminal.

During a run there is a new snapshot after each change. The last one is final: the cell shows it
from then on, and the notebook's file keeps it. ``labextension/src/snapshot.ts`` has the same types
in TypeScript; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, NamedTuple, TypedDict

from jupyter_sky.cluster.cost_meter import Unit
from jupyter_sky.cluster.state import ClusterPhase, RankPhase
from jupyter_sky.transport.protocol.inspection import RankHistory


class Snapshot(TypedDict):
    """A run and its cluster at one moment.

    ``ranks`` are those of the run, or all of the cluster if nothing runs. ``sent_bytes`` were sent
    by the notebook for the run. ``output`` is the end of one rank's output, ``others`` that of
    other ranks, once the run has ended. ``curves`` are the logged metrics, the head's first.
    """

    version: Literal[1]
    cluster: ClusterView
    run: RunView | None
    sent_bytes: int
    nodes: list[NodeView]
    ranks: list[RankView]
    output: OutputView
    others: list[OutputView]
    curves: list[CurveView]


class CurveView(TypedDict):
    """A metric that a rank has logged, as a curve.

    ``steps`` and ``values`` are those of its points; a value is ``None`` if it was not finite.
    ``count`` is the number of logged values, of which the points keep the extremes, and ``gaps`` is
    how many of them were not finite. ``last`` is the latest value.
    """

    name: str
    rank: int
    steps: list[float]
    values: list[float | None]
    last: float | None
    count: int
    gaps: int


class ClusterView(TypedDict):
    """The cluster as a whole.

    ``id`` is the registry's. ``note`` describes what the cluster is doing, or is empty;
    ``generation`` is the number of its process group; ``price`` is in dollars per hour, and
    ``cost`` the cost so far in ``unit``, if it has one; ``pages`` are those that its nodes serve
    for the browser.
    """

    id: str
    name: str
    provider: str
    phase: ClusterPhase
    note: str
    generation: int
    nodes: int
    gpu: str | None
    price: float | None
    cost: float | None
    unit: Unit
    pages: list[PageView]


class PageView(TypedDict):
    """A page of a node, forwarded by Jupyter's server.

    ``label`` is its name, ``path`` its path below the server's own address.
    """

    label: str
    path: str


class RunState(StrEnum):
    """The state of a run."""

    WAITING = "waiting"
    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class RunView(TypedDict):
    """A run: by default, the present or the last one.

    ``background`` says that the kernel does not wait for it. ``started`` is in seconds since the
    epoch, ``seconds`` is its duration up to this snapshot, ``title`` a line of its code. ``cell``
    is the id of the notebook's cell, and ``shown`` are the ranks whose output the cell shows.
    ``cost`` is in the cluster's unit, ``trouble`` says why the cluster could not continue the run.
    ``where`` says where its ranks are, if some wait long for others or the user has asked;
    ``warns`` says that it is a warning, and not only the answer. ``attempt`` is the number of the
    attempt and of possible attempts, from the second one on, and ``earlier`` are the runs that were
    the attempts before it.
    """

    id: str
    state: RunState
    background: bool
    started: float
    seconds: float
    ranks: list[int]
    shown: list[int]
    title: str
    cell: str | None
    progress: ProgressView | None
    cost: float | None
    trouble: str | None
    where: str | None
    warns: bool
    attempt: tuple[int, int] | None
    earlier: list[str]


class ProgressView(TypedDict):
    """A progress bar that a rank has printed.

    ``part`` is between 0 and 1, ``count`` is the bar's text, like ``"45/100"``, and ``left`` its
    estimate of the remaining seconds.
    """

    label: str
    part: float
    count: str
    left: float | None


class NodeView(TypedDict):
    """A node; ``gpu`` is the name of its GPUs."""

    node: int
    addr: str
    gpu: str | None


class RankOutcome(StrEnum):
    """How a rank's part of a run ended."""

    OK = "ok"
    ERROR = "error"
    LOST = "lost"
    STOPPED = "stopped"
    RELEASED = "released"


class RankView(TypedDict):
    """A rank, and its part of the run.

    ``utilisation`` is between 0 and 1, ``memory`` is used and total bytes, both of the rank's GPU
    if it has one; ``gpu`` is that GPU's number on the node. ``line`` is the last line that it
    printed, ``trouble`` describes a problem of its process. A dead rank is shown as gone.

    ``outcome`` is ``None`` until the rank has finished its part, which took ``seconds``; released
    ranks were stopped because another one had failed. ``error`` is its error in one line.
    ``restarted`` says that it has a new process without its variables, and ``began_empty`` that
    this was so when the run began.
    """

    rank: int
    node: int
    phase: Literal[RankPhase.STARTING, RankPhase.IDLE, RankPhase.RUNNING, RankPhase.GONE]
    utilisation: float | None
    memory: tuple[int, int] | None
    gpu: int | None
    line: str
    trouble: str | None
    outcome: RankOutcome | None
    seconds: float | None
    error: str | None
    progress: ProgressView | None
    restarted: bool
    began_empty: bool


class OutputView(TypedDict):
    """The last lines of a rank's output, unchanged."""

    rank: int
    text: str


class KeptOutput(NamedTuple):
    """What a run has printed, as far as it is kept; ``is_cut`` if its beginning is not."""

    text: str = ""
    is_cut: bool = False


class History(TypedDict):
    """Resource usage in the last ten minutes, or the part since a given moment.

    It is not part of a snapshot: a page requests it while it is shown. ``at`` is the moment to pass
    with the next request.
    """

    at: int
    nodes: list[NodeHistory]


class NodeHistory(TypedDict):
    """The resource usage of a node and its ranks.

    ``times`` are in milliseconds since the epoch, by the notebook's clock. Each list has a value
    for each of them, or is empty if nothing was measured. ``processor`` counts busy processors, of
    the machine's ``processors``; ``memory`` is in bytes, ``network`` in bytes per second. For a
    node that shares its machine, they are the sums of its ranks.
    """

    node: int
    times: list[int]
    processors: int
    memory_total: int
    processor: list[float | None]
    memory: list[int | None]
    network: list[float | None]
    ranks: list[RankHistory]


class Variables(TypedDict):
    """The variables of the ranks, as a table; a page requests it.

    ``head`` has the column titles, and ``notes`` further sentences.
    """

    head: list[str]
    rows: list[VariableRow]
    notes: list[str]


class VariableRow(TypedDict):
    """The value of a name on some ranks; ``differs`` says that ranks differ in it."""

    cells: list[str]
    differs: bool


class ProfileView(TypedDict):
    """A profile of the ranks, as a picture without scripts; a page requests it."""

    html: str
