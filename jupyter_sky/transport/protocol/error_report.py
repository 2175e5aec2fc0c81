"""What a rank says of an error, as plain data: nothing of it is pickled.

It is made in one place from an exception, on the rank, and by `report` from a sentence.
"""

from __future__ import annotations

import re
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, TypedDict

MEMBERS = MemberDescriptorType, GetSetDescriptorType
"""What an attribute is in its class that C code keeps, like ``errno`` of an `OSError`."""


class SingleError(TypedDict):
    """An error as it travels, without those that it may be made of.

    Attributes
    ----------
    type, module
        Name of its class, and where that is defined.
    bases
        Module and name of each class that it is an instance of, the nearest first.
    text
        What ``str`` says of it.
    args, attributes
        Those of its arguments and attributes that are plain data.
    traceback
        Its traceback as the rank shows it, in lines.
    """

    type: str
    module: str
    bases: list[tuple[str, str]]
    text: str
    args: list[Any]
    attributes: dict[str, Any]
    traceback: list[str]


class ErrorReport(SingleError):
    """An error as it travels.

    Attributes
    ----------
    exceptions
        The errors that a group of exceptions is made of.
    """

    exceptions: list[SingleError]


def report(kind: type[BaseException], text: str) -> ErrorReport:
    """Return the report of an error that was not raised anywhere.

    Parameters
    ----------
    kind
        Its class.
    text
        What there is to say, for a user.
    """
    return {
        "type": kind.__qualname__,
        "module": kind.__module__,
        "bases": [(kind.__module__, kind.__qualname__)],
        "text": text,
        "args": [text],
        "attributes": {},
        "traceback": [f"{kind.__qualname__}: {text}"],
        "exceptions": [],
    }


_TIME_IS_OVER = re.compile(r"gloo.*Timed out|Application timeout caused pair closure", re.I)
_OF_A_PEER = re.compile(
    r"gloo.*(Connection|Read error|Write error|Socket)|Connection (closed|reset) by peer"
    r"|NCCL.*abort|was aborted",
    re.I,
)


def is_consequence(text: str) -> bool:
    """Return whether the text of an error is that of a collective which a peer has left.

    Such an error says nothing of its own: the peer's error is the cause.
    """
    return _OF_A_PEER.search(text) is not None


def is_of_collective(error: BaseException | None) -> bool:
    """Return whether a collective has failed, by an error or its causes: its group is broken."""
    for _ in range(20):
        # An error's own methods are the user's code.
        text = error.args[0] if isinstance(error, RuntimeError) and error.args else ""
        if isinstance(text, str) and (is_consequence(text) or _TIME_IS_OVER.search(text)):
            return True
        error = error and (error.__cause__ or error.__context__)
    return False
