"""What comes from an agent, looked at before it is used: others may have taken the node over.

Each function raises a `ProtocolError` for what is none; the link is closed then, and made again.
"""

from __future__ import annotations

from typing import Any, cast

import jupyter_sky
from jupyter_sky.transport.frames import Message, ProtocolError
from jupyter_sky.transport.protocol.messages import RankUsage, Welcome
from jupyter_sky.transport.protocol.shape import check_for

_is_welcome = check_for(Welcome)
_is_report = check_for(list[RankUsage])


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


def number(event: Message) -> int:
    """Return the number of an event."""
    found = event.get("n")
    if not isinstance(found, int):
        raise ProtocolError("an event has no number")
    return found
