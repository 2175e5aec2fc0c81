"""The messages between a kernel and an agent: msgpack maps, whose types are defined here.

Requests that carry values are here, the others in `agent_requests`. Every request also has ``op``,
its name; ``id``, its number on this client; and ``settled``: answers to requests below that number
have arrived. The answer has the number as ``re``, and a sentence as ``error`` if it cannot be done.
Events, which agents send of their own accord, are in `events`, errors of ranks in `error_report`,
the topology of a cluster and what forms its process group in `topology`, and messages within a node
in `rank_messages`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.blobs.sent_folders import SentFolder
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.debugging import Debugging
from jupyter_sky.transport.protocol.profiling import RecordKind
from jupyter_sky.transport.rank_ranges import RankRanges


class Hello(TypedDict):
    """The first message of a client on each link.

    Attributes
    ----------
    since
        Number of the last event that the client has; with ``None``, the agent sends no events until
        the client asks for them with ``follow``.
    token
        Identifies the client when it reconnects.
    blobs
        Digests of blobs that the client believes to be on the node.
    visits
        Whether the client only observes: it does not keep the node from ending, and events that it
        sees still count as unseen by notebooks.
    version
        The client's version of jupyter_sky; 0.1.0 did not send it.
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
        Its process id; ``None`` while there is no process, or it is about to end.
    run
        The run that it is executing, if any.
    forming
        Generation of the process group that it is joining, if any.
    generation
        Generation of the process group that it is in; 0 for none.
    group_size
        Number of ranks of the last group that it was to join; 0 before the first.
    names
        For each name, the content digest of the value that the notebook sent last.
    given_up
        Why its last process ended or did not start, if no other is started for it.
    """

    rank: int
    pid: int | None
    run: str | None
    forming: int | None
    generation: int
    group_size: int
    names: dict[str, str]
    given_up: NotRequired[str | None]


class LatestRun(TypedDict):
    """The event `RunBegan` of the last run that began on a node, and whether its end was seen.

    Attributes
    ----------
    n
        Number of the event.
    unseen
        Whether its end is still unseen: no notebook has acknowledged (with ``seen``, and the number
        ``n`` of its last event) the event with which a rank ended it.
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
        Those of the client's ``blobs`` that are not on the node.
    shared
        Whether another notebook is connected and has shown a sign of life lately.
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
    """Names that are sent together, so that they share objects on the ranks as in the notebook.

    Attributes
    ----------
    ranks
        The ranks that it is for.
    shipment
        Identifies this shipment: a rank lists in `RankDone` those that it has bound.
    kind
        ``"name"``, ``"class"``, or ``"setting"`` (of the notebook's process, or a module of the
        user's).
    names
        The names, also of attributes of modules (``config:LR``), or keys of classes and modules.
    digests
        The content digest of each.
    packed
        The pickled value or values.
    together
        Whether ``packed`` holds a list with a value for each name, rather than one value.
    tokens
        Tokens of the objects in it that later shipments may refer to: the first new one, and by
        their index in the pickle's memo those of objects that already have one, and the former
        ones of objects that were edited.
    cells
        The notebook's cells that functions in it come from: by file name, text and title.
    by_name
        The keys of classes that ranks are to find by their names, too.
    changes
        For each model that the ranks have and that was changed in place in the notebook: the names
        of its parts that differ (see `jupyter_sky.serialization.changes.model_changes`). Also for
        each such container and class (see `container_changes` there).
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
    by_name: list[str]
    changes: NotRequired[Mapping[str, list[str]]]


# Requests that carry values


class Serving(TypedDict):
    """How a rank carries out calls.

    Attributes
    ----------
    concurrency
        How many run at once.
    executor
        Whether each runs in a ``"thread"`` or a ``"process"``.
    """

    concurrency: int
    executor: str


class Script(TypedDict):
    """Shell code that runs in a process of its own, once on each node of a run.

    Attributes
    ----------
    text
        The code for bash.
    env
        Its environment variables, beside those that all scripts have.
    folders
        Folders that each node has to have before it begins.
    cwd
        The folder that it runs in, relative to the one that ranks start in; ``None`` for the rank's
        current one.
    together
        Whether it is ended on the other nodes if it fails on one.
    port
        A free port of the head, for a rendezvous of processes; 0 if there is none.
    """

    text: str
    env: dict[str, str]
    folders: list[SentFolder]
    cwd: str | None
    together: bool
    port: int


class RunFields(TypedDict):
    """The description of a run, common to agents and ranks.

    Attributes
    ----------
    run
        Identifies the run.
    code, call, script
        One of them: the cell, the pickled call, or the script; none if ranks serve calls.
    cells
        The notebook's cells that define functions in ``call``: by file name, text and title.
    place
        The title of the cell, or the file of the script, and how many of its lines come before
        ``code``.
    watched
        The names for which a rank reports whether the run bound them.
    outdated
        The names that each rank deletes first.
    names
        The names that ranks need for it.
    show
        The ranks whose output is shown live.
    title
        The title of the run for the user.
    everyone
        All ranks that take part, including those of other nodes.
    ranks
        Those of them that begin now, including those of other nodes: each agent picks its own.
    together
        Whether a rank that fails stops the others, as it must if they share a process group.
    serves
        How ranks carry out calls that are sent one by one, instead of one of the above.
    talks
        Whether ``call`` sends values or asks for items while it runs.
    records
        What ranks record during it.
    deadline
        Seconds after Stop after which a rank that still runs is killed.
    debugging
        Whether somebody can answer prompts, and what the debugger does.
    checkpoint
        The last one that an earlier attempt at the run has saved.
    program
        The name and arguments of the program that ``code`` is part of; ``None`` in a notebook.
    after_cut_off
        Whether all ranks begin together for the first time since a run was cut off on some of them,
        so that what they keep equal may differ.
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
    after_cut_off: bool


class RunRequest(RunFields):
    """``run``: carry out a cell or a call on ranks of this node.

    If the node lacks blobs that the run needs, the answer has their digests as ``missing``, and the
    run has not begun.

    Attributes
    ----------
    generation
        The group that its ranks are in, as far as the notebook knows; it has not begun if one of
        them is not: it is a new process.
    values
        The names whose values are requested afterwards, for each rank.
    first, client
        Whether the other nodes are asked when this one has answered; the agent adds its client.
    attempts_left
        How many further attempts its notebook would begin if a rank or a node is lost.
    """

    generation: int
    values: dict[int, list[str]]
    first: bool
    client: str
    attempts_left: int


# Compact runs: fields that are empty are not sent, neither to agents nor to ranks. Most runs have
# little more than code, and sending the rest took a good part of a short cell's time.


def _defaults() -> Message:
    """Return what requests and commands have in common, as new objects."""
    nothing = dict.fromkeys(("code", "call", "script", "serves", "checkpoint", "program"))
    empty: Message = {"cells": {}, "outdated": {}, "watched": [], "names": [], "records": []}
    return {**nothing, **empty, "talks": False, "after_cut_off": False}


def _request_defaults() -> Message:
    return {**_defaults(), "values": {}, "first": False, "client": "", "attempts_left": 0}


def _command_defaults() -> Message:
    return {**_defaults(), "wanted": [], "asked": [], "of_one": [], "gpus": None}


_DEFAULTS: Mapping[str, Any] = {**_request_defaults(), **_command_defaults()}


def compact(run: Mapping[str, Any]) -> Message:
    """Return the fields of a run, or of a part of one, that are not empty."""
    return {
        name: value
        for name, value in run.items()
        if name not in _DEFAULTS or value != _DEFAULTS[name]
    }


def whole_request(message: Message) -> Any:
    """Return the complete `RunRequest` of a compact message."""
    return {**_request_defaults(), **message}


def whole_command(message: Message) -> Any:
    """Return the complete `rank_messages.RunCommand` of a compact message."""
    return {**_command_defaults(), **message}
