"""Output of a terminal that nobody reads any more, as of ``jupyter sky logs | head``."""

from __future__ import annotations

import os
import select

_OUTPUTS = (1, 2)  # descriptors: code of the user's may have put anything in the place of streams


def is_unread() -> bool:
    """Return whether nobody reads what is printed, or what is said beside it."""
    return any(map(_has_no_reader, _OUTPUTS))


def discard_unread() -> None:
    """Let what nobody reads lead nowhere, so that nothing fails that is printed at the end."""
    for each in filter(_has_no_reader, _OUTPUTS):
        os.dup2(os.open(os.devnull, os.O_WRONLY), each)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # errors come all the same
    return bool(poll.poll(0))
