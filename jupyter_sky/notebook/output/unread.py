"""Output that nobody reads any more, as in ``jupyter sky logs | head``."""

from __future__ import annotations

import os
import select

_OUTPUTS = (1, 2)  # descriptors, since the user's code may have replaced the streams


def is_unread() -> bool:
    """Return whether nobody reads standard output, or standard error."""
    return any(map(_has_no_reader, _OUTPUTS))


def discard_unread() -> None:
    """Redirect unread streams to nowhere, so that printing at the end does not fail."""
    for each in filter(_has_no_reader, _OUTPUTS):
        os.dup2(os.open(os.devnull, os.O_WRONLY), each)


def _has_no_reader(descriptor: int) -> bool:
    poll = select.poll()
    poll.register(descriptor, 0)  # errors are still printed
    return bool(poll.poll(0))
