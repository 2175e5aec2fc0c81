"""The messages between a kernel and an agent: each is a msgpack map, typed here and nowhere else.

Requests that carry values are here, the others in `agent_requests`. Every request also has ``op``,
its name, ``id``, its number on this client, and ``settled``: answers to requests below that number
have arrived and need not be remembered. The answer has the number as ``re``, and ``error``, a
sentence, where the agent cannot do what was asked.

Events, which agents send of their own accord, are in `events`; an error as a rank describes it is
in `error_report`, who is where in `topology`, and what travels within a node in `rank_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.profiling import RecordKind
from jupyter_sky.transport.protocol.topology import Topology
from jupyter_sky.transport.rank_ranges import RankRanges
from jupyter_sky.transport.sent_folders import SentFolder


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
        Of objects in it that other values may share: the arguments of `object_tokens.Tokens`.
    """

    stream: bytes | Blob
    buffers: list[bytes | Blob]
    tokens: NotRequired[list[Any]]


class Hello(TypedDict):
    """The first message of a client on each link.

    Attributes
    ----------
    since
        Number of the last event that the client has; with ``None`` the agent sends no events until
        the client asks with ``follow``.
    token
        Identifies the client on its next link.
    blobs
        Digests of the blobs that the client believes to be on the node.
    visits
        Whether the client only looks on: it does not keep the node from ending, and what it sees
        stays unseen for notebooks.
    version
        The client's version of jupyter_sky; 0.1.0 did not say it.
    """

    op: Literal["hello"]
    since: int | None
    token: str
    blobs: list[str]
    visits: NotRequired[bool]
    version: NotRequired[str]


class RankStatus(TypedDict):
    """The state of a rank, for a client that has just connected.

    Attributes
    ----------
    rank
        Its number.
    pid
        Its process id; ``None`` while there is no process.
    run
        The run that it is busy with, if any.
    generation
        Generation of the process group that it joined last; 0 before the first.
    names
        The content digest of each name that the notebook sent it last.
    """

    rank: int
    pid: int | None
    run: str | None
    generation: int
    names: dict[str, str]


class LatestRun(TypedDict):
    """The event `RunBegan` of the last run that began on a node, and what came of it.

    Attributes
    ----------
    n
        Number of the event.
    unseen
        Whether its end is: no notebook has said that it has the event with which a rank ended it
        (``seen``, with the number ``n`` of the last event that came).
    """

    event: str
    n: int
    unseen: bool
    run: str
    ranks: RankRanges
    title: str
    show: RankRanges
    asked: dict[int, list[str]]
    seconds: float


class Welcome(TypedDict):
    """The answer of an agent to `Hello`.

    Attributes
    ----------
    missing
        Of the client's ``blobs``, those that are not on the node.
    shared
        Whether another notebook is connected, and has given a sign of life lately.
    version
        The agent's version of jupyter_sky.
    cluster, id
        Name and identity of the cluster.
    last
        Number of the last event; 0 before the first.
    versions
        Versions of Python and the packages that ranks use; ``None`` until the fork server has
        imported them.
    latest
        The last run that began on this node.
    ranks
        The ranks of the node.
    ending
        Whether the agent is about to end.
    leaving
        The event `Leaving`, if the machine is about to be taken away.
    """

    welcome: Literal[True]
    missing: list[str]
    shared: bool
    version: str
    cluster: str
    id: str
    last: int
    versions: dict[str, str] | None
    latest: LatestRun | None
    ranks: list[RankStatus]
    ending: bool
    leaving: dict[str, Any] | None


class NameGroup(TypedDict):
    """Names that are sent as one, so that they share objects on the ranks as in the notebook.

    Attributes
    ----------
    ranks
        The ranks that it is for.
    shipment
        Identifies this sending: a rank says in `RankDone` which ones it came to bind.
    kind
        ``"name"``, ``"class"``, or ``"source"``: modules, and where the notebook's files are.
    names
        What it holds: names, or the keys of classes and modules.
    digests
        The content digest of each.
    packed
        The pickled value or values.
    together
        Whether ``packed`` holds a list with a value for each name, rather than one value.
    tokens
        Tokens of the objects in it that later sendings may refer to: the first one, and those of
        objects that have one already, by their place in the pickle's memo.
    cells
        The notebook's cells that functions in it come from: by file name, text and title.
    changes
        For each model that the ranks have, and that was changed in place in the notebook: the names
        of what differs in it (see `jupyter_sky.serialization.model_changes`).
    """

    ranks: NotRequired[list[int]]
    shipment: str
    kind: str
    names: list[str]
    digests: dict[str, str]
    packed: Packed
    together: bool
    tokens: list[Any] | None
    cells: Mapping[str, tuple[str, str]]
    changes: NotRequired[Mapping[str, list[str]]]


# Requests that carry values


class Serving(TypedDict):
    """How a rank carries out calls.

    Attributes
    ----------
    concurrency
        How many at once.
    executor
        Where: in a ``"thread"`` or a ``"process"`` each.
    """

    concurrency: int
    executor: str


class Script(TypedDict):
    """A shell text that runs as a process of its own, once on each node of a run.

    Attributes
    ----------
    text
        What bash is given.
    env
        Variables of its environment, beside those that all scripts have.
    folders
        What each node has to have before it begins.
    cwd
        The folder that it runs in, from the one that ranks begin in; ``None`` for the rank's own.
    together
        Whether it ends on the other nodes when it has failed on one.
    port
        A port that is free on the head, for processes that meet there; 0 where there is none.
    """

    text: str
    env: dict[str, str]
    folders: list[SentFolder]
    cwd: str | None
    together: bool
    port: int


class RunFields(TypedDict):
    """What a run is, for an agent and for a rank alike.

    Attributes
    ----------
    run
        Identifies the run.
    code, call, script
        One of them: the cell, the pickled call, or the script; none where ranks serve calls.
    cells
        The notebook's cells that functions in ``call`` come from: by file name, text and title.
    place
        The cell's title in the notebook, and how many of its lines stand above ``code``.
    watched
        The names of which a rank reports whether the run bound them.
    outdated
        The names that each rank should delete first.
    names
        The names that ranks need for it.
    show
        The ranks whose output is shown while they run.
    title
        What a user calls the run.
    everyone
        All ranks that take part, also on other nodes.
    ranks
        Those of them that begin now, also on other nodes: each agent knows its own.
    together
        Whether one that fails stops the others, as where they are in one process group.
    serves
        How ranks carry out calls that they are told one by one, instead of one of these.
    talks
        Whether ``call`` sends values while it runs, or asks for items.
    records
        What ranks record of it.
    deadline
        Seconds after Stop when a rank that still runs is killed.
    debugging
        Whether somebody answers prompts, and what the debugger is to do.
    checkpoint
        The last one that an earlier attempt at it has saved.
    program
        The name and arguments of the program that ``code`` is part of; ``None`` in a notebook.
    """

    run: str
    code: str | None
    call: Packed | None
    script: Script | None
    cells: Mapping[str, tuple[str, str]]
    place: tuple[str, int]
    watched: list[str]
    outdated: dict[int, list[str]]
    names: list[NameGroup]
    show: RankRanges
    title: str
    everyone: RankRanges
    ranks: RankRanges
    together: bool
    serves: Serving | None
    talks: bool
    records: list[RecordKind]
    deadline: float
    debugging: Debugging
    checkpoint: str | None
    program: list[str] | None


class RunRequest(RunFields):
    """``run``: carry out a cell or a call on ranks of this node.

    The answer has ``missing`` with the digests of blobs that are not on the node, if it needs any:
    the run has not begun then.

    Attributes
    ----------
    values
        The names that are asked for afterwards, for each rank.
    """

    values: dict[int, list[str]]


class ReserveRequest(TypedDict):
    """``reserve``: let the head listen for the process group; the answer has its ``port``."""

    rank: int
    addr: str


class FormRequest(TypedDict):
    """``form``: enter a process group.

    Attributes
    ----------
    ranks
        The ranks that do; those of other nodes are told by their own agents.
    life
        The plugins' hooks, pickled.
    names
        The names that those need.
    """

    ranks: list[int]
    topology: Topology
    life: Packed
    names: list[NameGroup]


# A run in few words: what it has nothing of is not said, neither to an agent nor to its ranks. Most
# runs have no more than code, and the rest was a good part of a short cell's way.


def _nothing() -> Message:
    """Return what a run has of which nothing was said, anew each time."""
    nothing = dict.fromkeys(("code", "call", "script", "serves", "checkpoint", "program"))
    maps: Message = {"cells": {}, "values": {}, "outdated": {}}
    return {**nothing, **maps, "watched": [], "names": [], "records": [], "talks": False}


def _nothing_for_a_rank() -> Message:
    return {**_nothing(), "values": [], "asked": [], "gpus": None}


_EMPTY: Mapping[str, Any] = {
    **{name: (value,) for name, value in _nothing_for_a_rank().items()},
    "values": ({}, []),
}


def said(run: Mapping[str, Any]) -> Message:
    """Return those fields of a run, or of a part of one, that hold something."""
    return {name: value for name, value in run.items() if value not in _EMPTY.get(name, ())}


def whole_request(message: Message) -> Any:
    """Return the `RunRequest` of which a message says what holds something."""
    return {**_nothing(), **message}


def whole_command(message: Message) -> Any:
    """Return the `rank_messages.RunCommand` of which a message says what holds something."""
    return {**_nothing_for_a_rank(), **message}
