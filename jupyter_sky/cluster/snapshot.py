"""What is shown of a run and its cluster, as JSON: in the cell, the sidebar and a terminal.

While a run goes on there is a new snapshot after each change. At its end the last one stays as it
is: it is what the cell shows of the run from then on, and what the notebook's file keeps.
``labextension/src/snapshot.ts`` says the same in TypeScript; a test compares the two.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Literal, TypedDict

from jupyter_sky.cluster.cost_meter import Unit
from jupyter_sky.cluster.state import ClusterPhase, RankPhase
from jupyter_sky.transport.protocol.inspection import RankHistory


class Snapshot(TypedDict):
    """A run and its cluster at one moment.

    ``ranks`` are those of the run, or all of the cluster where nothing runs. ``sent_bytes`` is what
    left the notebook for the run. ``output`` is the end of what one rank printed, ``others``
    that of other ranks, once the run has ended. ``curves`` are what ranks have logged, the head's
    first.
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
    """A figure that a rank has logged, as a curve.

    ``steps`` and ``values`` are those of its points; a value is ``None`` where it was no finite
    number. ``count`` is how many were logged, of which the points have the extremes, and ``gaps``
    how many of them were no finite number. ``last`` is the latest value.
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

    ``id`` is that of the registry. ``note`` says in words what it is doing, or is empty;
    ``generation`` is the number of its process group; ``price`` is in dollars an hour and ``cost``
    so far in the unit ``unit``, where it has one; ``pages`` are those that its nodes serve for the
    browser.
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
    """A page of a node, which Jupyter's server passes on.

    ``label`` is what it is called, ``path`` where it is below the server's own address.
    """

    label: str
    path: str


class RunState(StrEnum):
    """How a run is going, or how it ended."""

    WAITING = "waiting"
    RUNNING = "running"
    OK = "ok"
    ERROR = "error"
    INTERRUPTED = "interrupted"


class RunView(TypedDict):
    """A run: the present one, or the last one where nothing else is asked for.

    ``background`` says that the kernel does not wait for it. ``started`` is in seconds since the
    epoch, ``seconds`` how long it has taken up to this snapshot, ``title`` a line of its code.
    ``cell`` is the id of the notebook's cell, and ``shown`` are the ranks whose output the cell
    shows. ``cost`` is in its cluster's unit, ``trouble`` why that could not go on with the run.
    ``where`` says where its ranks are, when some wait long for others or the user has asked.
    ``attempt`` is which attempt at a cell it is and how many there can be, from the second one on.
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
    attempt: tuple[int, int] | None


class ProgressView(TypedDict):
    """A progress bar that a rank has printed.

    ``part`` is between 0 and 1, ``count`` what the bar says of it, like ``"45/100"``, and ``left``
    the seconds that it expects to take.
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
    """How a rank came to the end of its part of a run."""

    OK = "ok"
    ERROR = "error"
    LOST = "lost"
    STOPPED = "stopped"
    RELEASED = "released"


class RankView(TypedDict):
    """A rank, and its part of the run.

    ``utilisation`` is between 0 and 1, ``memory`` is used and total in bytes, both of the rank's
    GPU where it has one; ``gpu`` is that GPU's number on the node. ``line`` is the last line that
    it printed, ``trouble`` what is wrong with its process. A dead rank is shown as gone.

    ``outcome`` is ``None`` until the rank has come to the end of its part, for which it took
    ``seconds``; released ranks were stopped because another one had failed. ``error`` is its error
    in a line. ``restarted`` says that its process is a new one, in which variables are missing, and
    ``began_empty`` that this was so when the run began.
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
    """The last lines of what a rank printed, as it printed them."""

    rank: int
    text: str


class History(TypedDict):
    """What was used in the last ten minutes, or what came of that since a moment.

    It is no part of a snapshot: a page asks for it while it shows it. ``at`` is the moment of the
    next question.
    """

    at: int
    nodes: list[NodeHistory]


class NodeHistory(TypedDict):
    """What a node has used, and its ranks.

    ``times`` are in milliseconds since the epoch, by the notebook's clock. Each list has a value
    for each of them, or is empty where nothing was measured. ``processor`` counts processors that
    were busy, of the ``processors`` of the machine; ``memory`` is in bytes, ``network`` in bytes a
    second. Of a node that shares its machine they are those of its ranks.
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
    """What the names of the ranks stand for, as a table; a page asks for it.

    ``head`` are the titles of the columns, and ``notes`` say what else there is to know.
    """

    head: list[str]
    rows: list[VariableRow]
    notes: list[str]


class VariableRow(TypedDict):
    """What a name stands for on some ranks; ``differs`` says that ranks are not alike in it."""

    cells: list[str]
    differs: bool


class Profile(TypedDict):
    """What the ranks spent a time on, as a picture that needs no script; a page asks for it."""

    html: str
