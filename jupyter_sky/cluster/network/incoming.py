"""Checks messages from an agent before they are used: an attacker may have taken the node over.

The functions for messages that come unasked raise `ProtocolError` for a malformed one; the link is
then closed, and made again. Those for answers return an empty result, or ``None``.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, TypedDict, cast

import jupyter_sky
from jupyter_sky.serialization.blobs import PIECE
from jupyter_sky.transport.compression import expand
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.metrics.usage_history import KEPT
from jupyter_sky.transport.protocol.agent_requests import (
    FindAnswer,
    InstallAnswer,
    ReadAnswer,
    ReadShellAnswer,
    WrittenAnswer,
)
from jupyter_sky.transport.protocol.inspection import (
    InspectAnswer,
    LookAnswer,
    LookedRank,
    RankHistory,
    RankUsage,
    SeenRank,
    UsageHistory,
)
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.protocol.profiling import ProfileAnswer, RecordedAnswer
from jupyter_sky.transport.protocol.shape import check_for
from jupyter_sky.transport.together import ranks_done
from jupyter_sky.transport.volumes.requests import MountAnswer, VolumesAnswer, WriteBackAnswer

_MOST = 2**53  # JavaScript, on the page, is exact for whole numbers up to this


class _AnyWelcome(TypedDict):
    """The fields that the user is told of if the welcome is from another version."""

    version: str
    cluster: str
    missing: list[str]
    ending: bool


_is_welcome = check_for(Welcome)
_is_any_welcome = check_for(_AnyWelcome)
_is_report = check_for(list[RankUsage])
_is_history = check_for(UsageHistory)
_is_inspected = check_for(InspectAnswer)
_is_recorded = check_for(RecordedAnswer)
_is_profile = check_for(ProfileAnswer)
_is_looked = check_for(LookAnswer)
_is_installed = check_for(InstallAnswer)
_is_found = check_for(FindAnswer)
_is_read = check_for(ReadAnswer)
_is_written = check_for(WrittenAnswer)
_is_mounted = check_for(MountAnswer)
_is_written_back = check_for(WriteBackAnswer)
_is_volumes = check_for(VolumesAnswer)
_is_read_shell = check_for(ReadShellAnswer)


def welcome(message: Message) -> Welcome:
    """Return a checked welcome; of another version's, only what the user is told is checked."""
    ours = message.get("version") == jupyter_sky.__version__
    # The first release did not send its version.
    if not (_is_welcome(message) if ours else _is_any_welcome({"version": "", **message})):
        raise ProtocolError("this is no welcome")
    return cast(Welcome, message)


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
    return value is None or (0 <= value < _MOST and math.isfinite(value))


def inspected(answer: Message) -> list[SeenRank]:
    """Return what the ranks of a node are doing; nothing if the answer is malformed."""
    return cast("list[SeenRank]", answer["seen"]) if _is_inspected(answer) else []


def profile(answer: Message) -> ProfileAnswer | None:
    """Return a profile of the ranks of a node; ``None`` if it is malformed."""
    return cast(ProfileAnswer, answer) if _is_profile(answer) else None


def recorded(answer: Message) -> RecordedAnswer | None:
    """Return a part of what a rank has recorded; ``None`` if it is malformed."""
    return cast(RecordedAnswer, answer) if _is_recorded(answer) else None


def looked(answer: Message) -> list[LookedRank]:
    """Return what names stand for on the ranks of a node; nothing if the answer is malformed."""
    return cast("list[LookedRank]", answer["looked"]) if _is_looked(answer) else []


def installed(answer: Message) -> InstallAnswer | None:
    """Return the result of an installation; ``None`` if it is malformed."""
    return cast(InstallAnswer, answer) if _is_installed(answer) else None


def found_files(answer: Message) -> FindAnswer | None:
    """Return which files a node has; ``None`` if the answer is malformed."""
    return cast(FindAnswer, answer) if _is_found(answer) else None


def read_parts(answer: Message) -> list[memoryview | None] | None:
    """Return parts of files; ``None`` for a part that the node could not read.

    It is ``None`` instead of a list if the answer is malformed.
    """
    if not _is_read(answer):
        return None
    sizes = cast(ReadAnswer, answer)["sizes"]
    data = expand(answer, answer.get("payload", memoryview(b"")), PIECE)
    ends = list(itertools.accumulate(size or 0 for size in sizes))
    if any((size or 0) < 0 for size in sizes) or data.nbytes != (ends or [0])[-1]:
        return None
    return [
        None if size is None else data[end - size : end]
        for size, end in zip(sizes, ends, strict=True)
    ]


def arrived(answer: Message) -> int:
    """Return how many bytes of a blob a node has; none if the answer is malformed."""
    size = answer.get("size")
    return size if isinstance(size, int) and size > 0 else 0


def read_shell(answer: Message) -> ReadShellAnswer | None:
    """Return what a shell has printed; ``None`` if the answer is malformed."""
    return cast(ReadShellAnswer, answer) if _is_read_shell(answer) else None


def written(answer: Message) -> list[str]:
    """Return the files that a run has written on a node; nothing if the answer is malformed."""
    return cast(WrittenAnswer, answer)["names"] if _is_written(answer) else []


def mounted(answer: Message) -> MountAnswer:
    """Return the result of mounting volumes on a node."""
    if not _is_mounted(answer):
        return {"trouble": "it says of its volumes what cannot be read", "notes": []}
    return cast(MountAnswer, answer)


def written_back(answer: Message) -> WriteBackAnswer:
    """Return what a node has written back to volumes; nothing if the answer is malformed."""
    return cast(WriteBackAnswer, answer) if _is_written_back(answer) else {"volumes": []}


def volumes(answer: Message) -> VolumesAnswer:
    """Return the state of a node's volumes; nothing if the answer is malformed."""
    return cast(VolumesAnswer, answer) if _is_volumes(answer) else {"volumes": []}


def is_next(event: Message, last: int) -> bool:
    """Return whether an event is the one after number ``last``, and not an earlier one again.

    A number that is too high is refused: accepted, it would have later events taken for earlier
    ones, and ignored.
    """
    number = event.get("n")
    if not isinstance(number, int) or number < 1:
        raise ProtocolError("an event has no number")
    if number > last and number != last + _events_in(event):
        raise ProtocolError("events are missing")
    return number > last


def _events_in(event: Message) -> int:
    """Return how many events a message stands for: ends of ranks, or events that were not kept."""
    kind = event.get("event")
    if kind == "ranks_done":
        return ranks_done.events_in(event)
    if kind != "lost":
        return 1
    counts = [event.get("shown"), event.get("others")]
    return sum(each for each in counts if isinstance(each, int))
