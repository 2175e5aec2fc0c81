"""What comes from an agent, looked at before it is used: others may have taken the node over.

Each function raises a `ProtocolError` for what is none; the link is closed then, and made again.
"""

from __future__ import annotations

from typing import Any, cast

import jupyter_sky
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.protocol.inspection import (
    InspectAnswer,
    LookAnswer,
    LookedRank,
    SeenRank,
)
from jupyter_sky.transport.protocol.messages import RankUsage, Welcome
from jupyter_sky.transport.protocol.profiling import ProfileAnswer, RecordedAnswer
from jupyter_sky.transport.protocol.shape import check_for

_is_welcome = check_for(Welcome)
_is_report = check_for(list[RankUsage])
_is_inspected = check_for(InspectAnswer)
_is_recorded = check_for(RecordedAnswer)
_is_profile = check_for(ProfileAnswer)
_is_looked = check_for(LookAnswer)


def welcome(message: Message) -> Welcome:
    """Return a welcome; that of another version is shown to the user, and not looked into."""
    if message.get("version") == jupyter_sky.__version__ and not _is_welcome(message):
        raise ProtocolError("this is no welcome")
    return cast(Welcome, message)


def report(usage: Any) -> list[dict[str, Any]]:
    """Return what ranks use."""
    if not _is_report(usage):
        raise ProtocolError("this is no report")
    return cast("list[dict[str, Any]]", usage)


def inspected(answer: Message) -> list[SeenRank]:
    """Return what the ranks of a node are doing; nothing where that cannot be read."""
    return cast("list[SeenRank]", answer["seen"]) if _is_inspected(answer) else []


def profile(answer: Message) -> ProfileAnswer | None:
    """Return a profile of the ranks of a node; ``None`` where that cannot be read."""
    return cast(ProfileAnswer, answer) if _is_profile(answer) else None


def recorded(answer: Message) -> RecordedAnswer | None:
    """Return a part of what a rank has recorded; ``None`` where that cannot be read."""
    return cast(RecordedAnswer, answer) if _is_recorded(answer) else None


def looked(answer: Message) -> list[LookedRank]:
    """Return what names stand for on the ranks of a node; nothing where that cannot be read."""
    return cast("list[LookedRank]", answer["looked"]) if _is_looked(answer) else []


def is_next(event: Message, last: int) -> bool:
    """Return whether an event is the next one after number ``last``, or came before.

    A number that is too high would have all events ignored that are still to come.
    """
    number = event.get("n")
    if not isinstance(number, int):
        raise ProtocolError("an event has no number")
    if number > last and number != last + _events_in(event):
        raise ProtocolError("events are missing")
    return number > last


def _events_in(event: Message) -> int:
    """Return for how many events a message stands: one says how many were not kept."""
    if event.get("event") != "lost":
        return 1
    counts = [event.get("shown"), event.get("others")]
    return sum(each for each in counts if isinstance(each, int))
