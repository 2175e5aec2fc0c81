"""Checks messages from an agent before they are used: an attacker may have taken the node over.

The functions for messages that come unasked raise `ProtocolError` for a malformed one; the link is
then closed, and made again. An answer is checked by `is_answer` before whoever asked gets it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NotRequired, TypedDict, cast

import jupyter_sky
from jupyter_sky.formatting import for_terminal
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.metrics.usage_history import KEPT
from jupyter_sky.transport.ports.requests import OpenPortAnswer, ReadPortAnswer
from jupyter_sky.transport.protocol.agent_requests import (
    FindAnswer,
    InstallAnswer,
    LogAnswer,
    ReadAnswer,
    ReadShellAnswer,
    VariablesAnswer,
    WrittenAnswer,
)
from jupyter_sky.transport.protocol.inspection import (
    InspectAnswer,
    LookAnswer,
    RankHistory,
    RankUsage,
    UsageHistory,
)
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.protocol.profiling import ProfileAnswer, RecordedAnswer
from jupyter_sky.transport.protocol.shape import LARGEST, PortNumber, Size, check_for
from jupyter_sky.transport.protocol.topology import FormingTurn, LeftAnswer
from jupyter_sky.transport.together import ranks_done
from jupyter_sky.transport.volumes.requests import MountAnswer, VolumesAnswer, WriteBackAnswer


class _AnyWelcome(TypedDict):
    """The fields that the user is told of if the welcome is from another version."""

    version: str
    cluster: str
    missing: list[str]
    ending: bool


class _Piece(TypedDict):
    """The fields that each piece of a blob has."""

    piece: int
    offset: int


class _Refused(TypedDict):
    """Why a request was not carried out, and whether that is another run, or a lost rank."""

    error: str
    busy: NotRequired[bool]
    gone: NotRequired[bool]


class _Taken(TypedDict):
    """What a node lacks of the blobs that it needs for it."""

    missing: NotRequired[list[str]]


class _OwnAddress(TypedDict):
    """Where an agent that was alone listens from now on; empty if it was not."""

    addr: NotRequired[str]
    interface: NotRequired[str]
    port: NotRequired[PortNumber]
    fingerprint: NotRequired[str]


class _Size(TypedDict):
    """Bytes of a blob."""

    size: Size


class _Authority(TypedDict):
    """The certificate of the cluster's authority, in PEM."""

    authority: str


class _Failed(TypedDict):
    """The nodes that were not reached, and why."""

    failed: dict[int, str]


class _Room(TypedDict):
    """A file for a blob."""

    here: bool
    part: str


class _Filled(TypedDict):
    """Whether a blob is there now."""

    filled: bool


class _Line(TypedDict):
    """The last line that an installation has printed."""

    line: str


class _Port(TypedDict):
    """A port that is free."""

    port: PortNumber


class _Shell(TypedDict):
    """The number of a shell."""

    shell: int


_is_welcome = check_for(Welcome)
_is_any_welcome = check_for(_AnyWelcome)
_is_report = check_for(list[RankUsage])
_is_history = check_for(UsageHistory)
_is_piece = check_for(_Piece)
_is_refused = check_for(_Refused)

_ANSWERS: Mapping[str, type] = {
    "add_peers": _OwnAddress,
    "arrived": _Size,
    "authority": _Authority,
    "begin_forming": FormingTurn,
    "connect_to_test_ports": _Failed,
    "end_peers": _Failed,
    "fill_room": _Filled,
    "find": FindAnswer,
    "inspect": InspectAnswer,
    "install": InstallAnswer,
    "installing": _Line,
    "left": LeftAnswer,
    "listen_on_test_port": _Port,
    "log": LogAnswer,
    "look": LookAnswer,
    "make_room": _Room,
    "mount": MountAnswer,
    "open_port": OpenPortAnswer,
    "open_shell": _Shell,
    "pass_on": _Failed,
    "profile": ProfileAnswer,
    "reach": _Failed,
    "read": ReadAnswer,
    "read_port": ReadPortAnswer,
    "read_shell": ReadShellAnswer,
    "recorded": RecordedAnswer,
    "reserve": _Port,
    "run": _Taken,
    "take_profile": ProfileAnswer,
    "tell": _Taken,
    "variables": VariablesAnswer,
    "volumes": VolumesAnswer,
    "write_back": WriteBackAnswer,
    "written": WrittenAnswer,
}
"""The types of answers, by request; those of the others merely confirm it."""

_IS_ANSWER = {op: check_for(answer) for op, answer in _ANSWERS.items()}


_TOLD = frozenset(
    {
        *("connect_to_test_ports", "end_peers", "inspect", "install", "installing", "look"),
        *("mount", "pass_on", "profile", "reach", "take_profile", "volumes", "write_back"),
    }
)
"""Requests whose answers have text that the user is shown, and none that stands for something."""

_SENTENCES = ("reason", "tail", "title", "prompt", "text", "place")  # fields of events
_DEEPEST = 6  # lists and fields around a text that is used


def is_answer(op: str, message: Message) -> bool:
    """Return whether a message is an answer to a request; any request may be refused."""
    check = _is_refused if "error" in message else _IS_ANSWER.get(op)
    return check is None or check(message)


def as_told(op: str, answer: Message) -> Message:
    """Return a checked answer whose text commands no terminal."""
    told: Message = _for_terminal(answer, _DEEPEST) if op in _TOLD else answer
    return told


def _for_terminal(value: Any, deepest: int) -> Any:
    if isinstance(value, str):
        return value if value.isprintable() else for_terminal(value)
    if isinstance(value, dict) and deepest:
        return {key: _for_terminal(each, deepest - 1) for key, each in value.items()}
    if isinstance(value, list) and deepest:
        return [_for_terminal(each, deepest - 1) for each in value]
    return value


def event_as_told(event: Message) -> Message:
    """Return an event in which the sentences command no terminal, before it is checked."""
    sentences = {name: _for_terminal(event[name], 0) for name in _SENTENCES if name in event}
    return {**event, **sentences} if sentences else event


def welcome(message: Message) -> Welcome:
    """Return a checked welcome, whose text commands no terminal.

    Of another version's, only what the user is told is checked.
    """
    ours = message.get("version") == jupyter_sky.__version__
    # The first release did not send its version.
    if not (_is_welcome(message) if ours else _is_any_welcome({"version": "", **message})):
        raise ProtocolError("this is no welcome")
    return cast(Welcome, _for_terminal(message, _DEEPEST))


@dataclass(frozen=True)
class Report:
    """The resource usage of a machine and its ranks.

    Attributes
    ----------
    ranks
        What each rank uses now.
    history
        The part of the last minutes' usage that was not sent before.
    """

    ranks: Sequence[RankUsage]
    history: UsageHistory | None

    @property
    def speaks_for(self) -> frozenset[int]:
        """The ranks that it has numbers of."""
        return frozenset(entry["rank"] for entry in (*self.ranks, *self._historic))

    def of(self, ranks: Collection[int]) -> Report:
        """Return the part of it that is about these ranks."""
        kept = [entry for entry in self.ranks if entry["rank"] in ranks]
        historic = [entry for entry in self._historic if entry["rank"] in ranks]
        history = self.history and cast(UsageHistory, {**self.history, "ranks": historic})
        return Report(kept, history)

    @property
    def _historic(self) -> Sequence[RankHistory]:
        return self.history["ranks"] if self.history else ()


def report(message: Message) -> Report:
    """Return a checked report of resource usage."""
    usage, history = message["report"], message.get("history")
    if not _is_report(usage) or not (history is None or _is_drawable_history(history)):
        raise ProtocolError("this is no report")
    return Report(cast("list[RankUsage]", usage), cast("UsageHistory | None", history))


def _is_drawable_history(history: Any) -> bool:
    """Return whether this is a history that a page can draw."""
    if not _is_history(history):
        return False
    times = history["times"]
    columns = [history[name] for name in ("processor", "memory", "network")]
    for rank in history["ranks"]:
        columns += [rank[name] for name in ("processor", "memory", "gpu", "gpu_memory")]
    sizes = [history["processors"], history["memory_total"]]
    sizes += [rank["gpu_total"] or 0 for rank in history["ranks"]]
    return (
        0 < len(times) <= KEPT
        and all(len(column) in (0, len(times)) for column in columns)
        and all(_is_amount(each) for column in (times, sizes, *columns) for each in column)
    )


def _is_amount(value: float | None) -> bool:
    return value is None or (0 <= value < LARGEST and math.isfinite(value))


def is_log_part(answer: Message, tail: int | None, offset: int, limit: int) -> bool:
    """Return whether an answer has the part of a log that was asked for, as of `LogRequest`."""
    log = cast(LogAnswer, answer)
    start, size = log["start"], log["size"]
    end = start + len(log["data"])
    # Who reads on comes to an end: it neither goes back nor is there more than the log has.
    is_asked = start >= offset if tail is None else size - start <= limit
    is_whole = len(log["data"]) <= limit and (end == start or end <= size)
    indexed = ([piece[0] for piece in log["pieces"]], [run[0] for run in log["runs"]])
    return (
        is_asked
        and is_whole
        and all(places == sorted(places) and max(places, default=0) <= end for places in indexed)
    )


def read_parts(answer: Message) -> list[memoryview | None] | None:
    """Return parts of files; ``None`` for a part that the node could not read.

    It is ``None`` instead of a list if the payload is not that of these parts.
    """
    sizes = cast(ReadAnswer, answer)["sizes"]
    try:
        data = expand(answer, answer.get("payload", memoryview(b"")), PIECE)
    except ProtocolError:
        return None
    ends = list(itertools.accumulate(size or 0 for size in sizes))
    if any((size or 0) < 0 for size in sizes) or data.nbytes != (ends or [0])[-1]:
        return None
    return [
        None if size is None else data[end - size : end]
        for size, end in zip(sizes, ends, strict=True)
    ]


def piece(message: Message) -> int:
    """Return which request a piece of a blob answers.

    Raises
    ------
    ProtocolError
        If the piece does not say where it belongs.
    """
    if not _is_piece(message):
        raise ProtocolError("a piece does not say where it belongs")
    number: int = message["piece"]
    return number


def next_number(event: Message, last: int) -> int:
    """Return the number of an event, which has to be the one after number ``last``.

    One that came before is refused, too: a node sends none twice, and ignored it could be the end
    of a run.
    """
    number = event.get("n")
    if not isinstance(number, int) or number < 1:
        raise ProtocolError("an event has no number")
    if number <= last:
        raise ProtocolError("an event has the number of an earlier one")
    if number != last + _events_in(event):
        raise ProtocolError("events are missing")
    return number


def _events_in(event: Message) -> int:
    """Return how many events a message stands for: ends of ranks, or events that were not kept."""
    kind = event.get("event")
    if kind == "ranks_done":
        return ranks_done.events_in(event)
    if kind != "lost":
        return 1
    counts = [event.get("shown"), event.get("others")]
    return sum(each for each in counts if isinstance(each, int))
