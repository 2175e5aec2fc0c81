"""What a kernel asks of an agent, but for runs and formations, which are in `messages`.

Each class is a request by the name that its text begins with; `messages` says what all have.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from jupyter_sky.transport.protocol.topology import AgentAddress

# Ranks


class AbandonRequest(TypedDict):
    """``abandon``: take ranks out of a formation that some of them will not complete.

    The answer comes when no rank is in it any more.

    Attributes
    ----------
    patience
        Seconds that ranks get to complete it after all.
    """

    patience: float


class InterruptRequest(TypedDict):
    """``interrupt``: stop a run, at the latest after ``deadline`` seconds by killing ranks."""

    run: str
    deadline: float


class RanksRequest(TypedDict):
    """``kill``: replace processes, idle ones after ``patience``; ``remove_ranks``: end them all."""

    ranks: list[int]
    patience: NotRequired[float]


class RankEnvironment(TypedDict):
    """A rank to start, and variables of its environment, as `agent_spec.RankSpec` has them."""

    rank: int
    env: dict[str, str]


class AddRanksRequest(TypedDict):
    """``add_ranks``: start further ranks on this node."""

    ranks: list[RankEnvironment]


LoggedPiece = tuple[int, float, str]
"""Where a piece of a log begins, when it was written, and to which stream."""

LoggedRun = tuple[int, float, str, str]
"""Where a run begins in a log, when it began, its id, and its title."""


class LogRequest(TypedDict):
    """``log``: read a part of a rank's log, at most ``limit`` bytes; answered by `LogAnswer`.

    Attributes
    ----------
    tail
        Number of last lines to read; with ``None`` it is read from ``offset`` on.
    """

    rank: int
    tail: int | None
    offset: int
    limit: int


class LogAnswer(TypedDict):
    """A part of a rank's log.

    Attributes
    ----------
    data, start
        The bytes, and where they stand in the log.
    size
        The bytes of the log in all.
    pieces, runs
        What stands there; the first of each may begin before.
    """

    data: bytes
    start: int
    size: int
    pieces: list[LoggedPiece]
    runs: list[LoggedRun]


# Blobs


class FetchRequest(TypedDict):
    """``fetch``: send a blob of ``size`` bytes in pieces, from ``offset`` on.

    A piece that has a field ``ack`` asks for a ``got`` with that ``size``; who wants no more of a
    blob says ``unwanted`` with the request's ``id``.
    """

    id: int
    blob: str
    size: int
    offset: int


class ArrivedRequest(TypedDict):
    """``arrived``: tell in ``size`` how many bytes of a blob have arrived, from the first on."""

    blob: str


class MakeRoomRequest(TypedDict):
    """``make_room``: make a file that a notebook on this machine writes a blob into.

    The answer has its name in the folder of blobs as ``part``, empty where there is no room, and
    says as ``here`` whether the blob is there already.

    Attributes
    ----------
    writer
        The process that writes it: what that leaves when it ends is removed.
    """

    blob: str
    size: int
    writer: int


class FillRoomRequest(TypedDict):
    """``fill_room``: take a file for the blob that was written into it; the rest is dropped.

    The answer says as ``filled`` whether the blob is there now.

    Attributes
    ----------
    size
        Bytes that were written; -1 if they are not those of the blob.
    """

    blob: str
    part: str
    size: int


class PassOnRequest(TypedDict):
    """``pass_on``: give a blob to other agents, also while it is still arriving.

    The answer has ``failed``: the node of each agent that did not get it, and why.
    """

    blob: str
    size: int
    to: list[AgentAddress]


# Packages


class WheelBlob(TypedDict):
    """A file that was sent as a blob."""

    blob: str
    size: int


class InstallRequest(TypedDict):
    """``install``: install packages beside what ranks have; answered by `InstallAnswer`.

    Attributes
    ----------
    requirements
        All that was added to the cluster since its start, as pip writes it.
    settings
        Where they come from, as uv reads it behind them in a ``pyproject.toml``.
    options
        Options of uv.
    wheels
        Wheels that were sent, by their names.
    env
        Variables for uv, which can be secrets.
    uv
        uv itself, where the node has none.
    """

    requirements: list[str]
    settings: str
    options: list[str]
    wheels: dict[str, WheelBlob]
    env: dict[str, str]
    uv: WheelBlob | None


class InstallAnswer(TypedDict):
    """What came of it; ``stop_install`` ends it, and ``installing`` asks for the last ``line``.

    Attributes
    ----------
    installed
        What is new: name and version of each package.
    trouble
        Why it failed; empty if it did not.
    lacks
        The kind of machine for which uv has to be sent first.
    """

    installed: list[str]
    trouble: str
    lacks: str | None


# Files


class FindRequest(TypedDict):
    """``find``: which files patterns stand for, ``most`` at most; answered by `FindAnswer`."""

    patterns: list[str]
    most: int


class FoundFile(TypedDict):
    """A file of a node.

    Attributes
    ----------
    path
        Where it is there.
    name
        Where it is in the folder that ranks begin in, or in the one that was asked for.
    size
        In bytes.
    changed
        When it was changed, in nanoseconds since the epoch.
    executable
        Whether its owner can execute it.
    """

    path: str
    name: str
    size: int
    changed: int
    executable: bool


class FindAnswer(TypedDict):
    """The files, the patterns that stand for none, and whether there are more files."""

    files: list[FoundFile]
    missing: list[str]
    has_more: bool


FilePart = tuple[str, int, int]
"""The path of a file, and where in it a part begins, and how many bytes it has."""


class ReadRequest(TypedDict):
    """``read``: read parts of files; answered by `ReadAnswer`."""

    parts: list[FilePart]


class ReadAnswer(TypedDict):
    """How many bytes of each part are in the payload; ``None`` for parts that cannot be read.

    The payload may be compressed, and asks for a ``got`` as pieces of blobs do.
    """

    sizes: list[int | None]


class WrittenAnswer(TypedDict):
    """What ``written`` asks for: names that the last run has written where ranks begin."""

    names: list[str]


# Shells


class OpenShellRequest(TypedDict):
    """``open_shell``: start a shell with what a rank has; the answer has its number, ``shell``.

    Attributes
    ----------
    rank
        The rank whose environment it has.
    term
        What the user's terminal is, as the variable ``TERM`` says it.
    rows, columns
        Of that terminal.
    """

    rank: int
    term: str
    rows: int
    columns: int


class ShellRequest(TypedDict):
    """``read_shell``: what it has printed since; ``close_shell``: end it."""

    shell: int


class ReadShellAnswer(TypedDict):
    """What a shell has printed, and its exit status once it has ended and all was read.

    It is there as soon as anything was printed, and after some seconds without that.
    """

    data: bytes
    status: int | None


class TypeRequest(TypedDict):
    """``type_in_shell``: let a shell read what the user has typed."""

    shell: int
    data: bytes


class ResizeShellRequest(TypedDict):
    """``resize_shell``: give the terminal of a shell other rows and columns."""

    shell: int
    rows: int
    columns: int


# Other agents


class ReachRequest(TypedDict):
    """``reach``: connect to other agents; the answer has ``failed``, as for `PassOnRequest`."""

    peers: list[AgentAddress]


class EndPeersRequest(TypedDict):
    """``end_peers``: tell other agents that they were ended; the answer has ``failed``, as above.

    With no ``peers`` it asks for nothing but a sign of life.
    """

    peers: list[AgentAddress]


class ListenRequest(TypedDict):
    """``listen_on_test_port``: listen for ``callers`` connections; the answer has the ``port``."""

    addr: str
    callers: int


class ConnectRequest(TypedDict):
    """``connect_to_test_ports``: connect to other nodes; the answer has ``failed``, as above.

    Attributes
    ----------
    listeners
        Node, address and port of each.
    """

    listeners: list[tuple[int, str, int]]


class AddPeersRequest(TypedDict):
    """``add_peers``: trust agents that join the cluster.

    The answer has ``addr``, ``interface`` and ``port`` where the agent listens to others from now
    on, and the ``fingerprint`` of what it shows them, if it was alone so far.

    Attributes
    ----------
    authority
        The certificate of who has signed for them, as PEM.
    credentials
        For an agent that was alone so far: what it shows to other agents.
    peer
        The address of one of them.
    peers
        Their fingerprints.
    """

    authority: str
    credentials: Mapping[str, Any] | None
    peer: str
    peers: list[str]
