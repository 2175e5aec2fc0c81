"""The messages between kernel, agent and ranks: each is a msgpack map, typed here and nowhere else.

Events, which agents tell of their own accord, are in `events`; what is said of an error is in
`error_report`, and who is where in `topology`.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict

from jupyter_sky.transport.topology import Topology


class Blob(TypedDict):
    """A large part of a packed value, sent by itself: its digest, and its size in bytes."""

    blob: str
    size: int


class Packed(TypedDict):
    """A pickled value.

    Attributes
    ----------
    stream
        The pickle.
    buffers
        The contiguous memory that it refers to, in order.
    tokens
        Of objects in it that other values may share: place in the pickle's memo and token.
    """

    stream: bytes | Blob
    buffers: list[bytes | Blob]
    tokens: NotRequired[dict[int, str]]


class Hello(TypedDict):
    """The first message of a client on each link.

    Attributes
    ----------
    since
        Number of the last event that it has; ``None`` to hear of none until it asks.
    token
        What it is known by on its next link.
    blobs
        The digests that it takes the node to have.
    visits
        Whether it only looks on, and keeps nothing up.
    version
        Its jupyter_sky.
    """

    op: Literal["hello"]
    since: int | None
    token: str
    blobs: list[str]
    visits: bool
    version: str


class RankStatus(TypedDict):
    """What a client that is new should know of a rank.

    Attributes
    ----------
    pid
        Its process; ``None`` while there is none.
    run
        The run that it is busy with.
    generation
        The process group that it is in.
    names
        What it holds under each name, by content.
    """

    rank: int
    pid: int | None
    run: str | None
    generation: int
    names: dict[str, Any]


class Welcome(TypedDict):
    """The answer of an agent to `Hello`.

    Attributes
    ----------
    missing
        Of the client's ``blobs``, those that are not there.
    shared
        Whether another notebook is connected.
    cluster, id
        Name and identity of the cluster.
    last
        Number of the last event.
    versions
        Of what ranks have imported; ``None`` until they have.
    latest
        The last run that began here, as its event says it, with its number ``n`` and whether it is
        ``unseen``.
    ranks
        The ranks.
    ending
        Whether the agent is about to end.
    leaving
        That the machine will be taken away, as the event says it.
    """

    welcome: Literal[True]
    missing: list[str]
    shared: bool
    version: str
    cluster: str
    id: str
    last: int
    versions: dict[str, str] | None
    latest: dict[str, Any] | None
    ranks: list[RankStatus]
    ending: bool
    leaving: dict[str, Any] | None


class NameGroup(TypedDict):
    """Names that are sent as one, so that they share objects on the ranks as in the notebook."""

    ranks: NotRequired[list[int]]
    packed: Packed


class RunRequest(TypedDict):
    """What a kernel asks of an agent, and an agent of its ranks: carry out a cell or a call.

    Attributes
    ----------
    code, call
        One of them: the cell, or the pickled call.
    cells
        The notebook's cells that functions in ``call`` come from.
    place
        The cell's title in the notebook, and how many of its lines stand above ``code``.
    values
        The names that are asked for afterwards, for each rank.
    watched
        The names of which a rank says whether the run bound them.
    outdated
        The names that each rank should drop.
    names
        The names that ranks need for it.
    show
        The ranks whose output is shown.
    everyone
        All ranks that take part, also on other nodes.
    ranks
        Those of them on this node.
    together
        Whether they are in one process group, so that one that fails stops the others.
    deadline
        Seconds after Stop when a rank that still runs is killed.
    """

    run: str
    code: str | None
    call: Packed | None
    cells: dict[str, Any]
    place: tuple[str, int]
    values: dict[int, list[str]]
    watched: list[str]
    outdated: dict[int, list[str]]
    names: list[NameGroup]
    show: list[int]
    title: str
    everyone: list[int]
    ranks: list[int]
    together: bool
    deadline: float


class FormRequest(TypedDict):
    """What a kernel asks of an agent, and an agent of its ranks: enter a process group.

    Attributes
    ----------
    life
        The plugins' hooks, pickled.
    names
        The names that those need.
    """

    topology: Topology
    life: Packed
    names: list[NameGroup]
