"""Requests of a kernel to an agent, except those for runs (`messages`) and groups (`topology`).

Each docstring begins with the name of the request; `messages` describes the common fields.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal, NotRequired, TypedDict

from jupyter_sky.transport.protocol.shape import Size, Time
from jupyter_sky.transport.protocol.topology import AgentAddress

Handlers = dict[str, Callable[[Any], Any]]
"""What carries out requests, by their names; each returns the answer, or an awaitable of it.

The sender decides which fields a request has: a handler declares those that it expects.
"""

CAUGHT_UP = "caught_up"  # in the answer to ``catch_up``, which stays behind all events before it

SENT_WHEELS = "@wheels@"  # in requirements, the folder of the wheels that a node was sent


# Ranks


class InterruptRequest(TypedDict):
    """``interrupt``: stop a run; after ``deadline`` seconds, kill its ranks."""

    run: str
    deadline: float


class QueueRequest(TypedDict):
    """``queue``: let a run wait behind those that are in the queue, or keep its place there.

    ``leave_queue``: take it out, since it has begun or is over. See `events.Queued`.
    """

    run: str


class RanksRequest(TypedDict):
    """``kill``: replace processes, idle ones after ``patience``; ``remove_ranks``: end them all."""

    ranks: list[int]
    patience: NotRequired[float]


class RankEnvironment(TypedDict):
    """A rank to start and its environment variables, as in `agent_spec.RankSpec`."""

    rank: int
    env: dict[str, str]


class AddRanksRequest(TypedDict):
    """``add_ranks``: start further ranks on this node."""

    ranks: list[RankEnvironment]


class VariablesRequest(TypedDict):
    """``variables``: say with which values of variables ranks start now."""

    names: list[str]


class VariablesAnswer(TypedDict):
    """The values of those variables that the node has."""

    variables: dict[str, str]


class RenewVariablesRequest(TypedDict):
    """``renew_variables``: start ranks with new values of variables from now on."""

    variables: dict[str, str]


class AddedRequest(TypedDict):
    """``added``: tell others that the client ``by`` has attached, or added something."""

    by: str


LOG_BEGINNING = 64 * 1024 * 1024
"""Bytes that a node keeps of the beginning of a log, whatever comes."""

LOG_END = 192 * 1024 * 1024
"""Bytes that it keeps of the end; what is between the two is dropped."""

LogStream = Literal["stdout", "stderr", "log"]
"""Where output went; ``log`` is for what is only there."""

LoggedPiece = tuple[Size, Time, LogStream]
"""Where a piece of a log begins, when it was written, and to which stream."""

LoggedRun = tuple[Size, Time, str, str]
"""Where a run begins in a log, when it began, its id, and its title."""


class LogRequest(TypedDict):
    """``log``: read a part of a rank's log, at most ``limit`` bytes; answered by `LogAnswer`.

    The agent adds the ``client``.

    Attributes
    ----------
    tail
        Number of last lines to read; ``None`` to read from ``offset`` on.
    follows
        Whether the client goes on reading as the log grows: a node that ends waits a
        moment for it. False ends that for all logs; without it, they stay as they are.
    """

    rank: int
    tail: int | None
    offset: int
    limit: int
    follows: NotRequired[bool]
    client: str


class LogAnswer(TypedDict):
    """A part of a rank's log.

    Attributes
    ----------
    data, start
        The bytes, and their offset in the log.
    size
        The size of the whole log in bytes.
    pieces, runs
        The pieces and runs in this part; the first of each may begin before it.
    clock
        The time by the clock of the pieces, in seconds since the epoch.
    """

    data: bytes
    start: Size
    size: Size
    pieces: list[LoggedPiece]
    runs: list[LoggedRun]
    clock: Time


# Blobs


class FetchRequest(TypedDict):
    """``fetch``: send a blob of ``size`` bytes in pieces, starting at ``offset``.

    A piece with a field ``ack`` asks for a ``got`` with that ``size``. A client that wants no more
    of a blob says ``unwanted`` with the request's ``id``.
    """

    id: int
    blob: str
    size: int
    offset: int


class ArrivedRequest(TypedDict):
    """``arrived``: return as ``size`` how many bytes of a blob have arrived so far."""

    blob: str


class MakeRoomRequest(TypedDict):
    """``make_room``: create a file for a notebook on this machine to write a blob into.

    In the answer, ``part`` is its name in the folder of blobs, empty if there is no room, and
    ``here`` tells whether the blob is there already.

    Attributes
    ----------
    writer
        The process that writes it; unfinished files are removed when it ends.
    """

    blob: str
    size: int
    writer: int


class FillRoomRequest(TypedDict):
    """``fill_room``: accept the blob that was written into a file, and remove the file's rest.

    In the answer, ``filled`` tells whether the blob is there now.

    Attributes
    ----------
    size
        The number of bytes written; -1 if writing the blob failed.
    """

    blob: str
    part: str
    size: int


class PassOnRequest(TypedDict):
    """``pass_on``: send a blob to other agents, even while it is still arriving.

    In the answer, ``failed`` has the node of each agent that did not get it, and why.
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
    """``install``: install packages beside those of the ranks; answered by `InstallAnswer`.

    Attributes
    ----------
    installation
        The name of this installation on all nodes.
    requirements
        All requirements added to the cluster since its start, in pip's syntax.
    settings
        Their sources, as text that is appended to them in a ``pyproject.toml`` for uv.
    options
        Command-line options for uv.
    wheels
        Wheels that were sent, by file name.
    env
        Environment variables for uv, which may be secret.
    uv
        uv itself, if the node does not have it.
    """

    installation: str
    requirements: list[str]
    settings: str
    options: list[str]
    wheels: dict[str, WheelBlob]
    env: dict[str, str]
    uv: WheelBlob | None


class EndInstallRequest(TypedDict):
    """``stop_install``: end an installation, or undo it; ``keep_install``: forget how to."""

    installation: str


class InstallAnswer(TypedDict):
    """The result of ``install``; ``installing`` asks meanwhile for its last ``line``.

    Attributes
    ----------
    installed
        The packages that are new: name and version of each.
    trouble
        Why it failed; empty if it succeeded.
    lacks
        The kind of machine, if uv has to be sent for it first.
    """

    installed: list[str]
    trouble: str
    lacks: str | None


# Files


class FindRequest(TypedDict):
    """``find``: list the files that match patterns, at most ``most``; answered by `FindAnswer`."""

    patterns: list[str]
    most: int


class FoundFile(TypedDict):
    """A file on a node.

    Attributes
    ----------
    path
        Its path on the node.
    name
        Its path relative to the folder that ranks start in, or to the requested one.
    size
        In bytes.
    changed
        Its modification time, in nanoseconds since the epoch.
    mode
        Who may read, write and execute it.
    """

    path: str
    name: str
    size: Size
    changed: int
    mode: int


class FindAnswer(TypedDict):
    """The files, the patterns that match none, whether there are more, and links to elsewhere."""

    files: list[FoundFile]
    missing: list[str]
    has_more: bool
    links_out: list[str]


FilePart = tuple[str, int, int]
"""The path of a file, and where in it a part begins, and how many bytes it has."""


class ReadRequest(TypedDict):
    """``read``: read parts of files; answered by `ReadAnswer`."""

    parts: list[FilePart]


class ReadAnswer(TypedDict):
    """The number of bytes of each part in the payload; ``None`` for parts that cannot be read.

    The payload may be compressed, and is to be acknowledged by a ``got`` like pieces of blobs.
    """

    sizes: list[Size | None]


class WrittenAnswer(TypedDict):
    """The answer to ``written``: files that the last run wrote where ranks start."""

    names: list[str]


# Shells


class OpenShellRequest(TypedDict):
    """``open_shell``: start a shell with the environment of a rank; ``shell`` is its number.

    Attributes
    ----------
    rank
        The rank whose environment it gets.
    term
        The type of the user's terminal, as in the variable ``TERM``.
    rows, columns
        The size of that terminal.
    """

    rank: int
    term: str
    rows: int
    columns: int


class ShellRequest(TypedDict):
    """``read_shell``: return what it has printed since; ``close_shell``: end it."""

    shell: int


class ReadShellAnswer(TypedDict):
    """What a shell has printed, and its exit status once it has ended and was read to the end.

    It comes as soon as anything was printed, or after some seconds without output.
    """

    data: bytes
    status: int | None


class TypeRequest(TypedDict):
    """``type_in_shell``: send what the user has typed to a shell."""

    shell: int
    data: bytes


class ResizeShellRequest(TypedDict):
    """``resize_shell``: change the size of a shell's terminal."""

    shell: int
    rows: int
    columns: int
