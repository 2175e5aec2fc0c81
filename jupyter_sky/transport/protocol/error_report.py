"""How a rank reports an error: as plain data, never as a pickle.

Ranks make it from an exception in one place; `report` makes it from a sentence.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any, NotRequired, TypedDict

MEMBERS = MemberDescriptorType, GetSetDescriptorType
"""What an attribute is in its class that C code keeps, like ``errno`` of an `OSError`."""


class SingleError(TypedDict):
    """A reported error, without those that it may be a group of.

    Attributes
    ----------
    type, module
        The name of its class, and the module that defines it.
    bases
        Module and name of each class that it is an instance of, the nearest first.
    text
        Its ``str``.
    args, attributes
        Those of its arguments and attributes that are plain data.
    traceback
        The lines of its traceback, as shown on the rank.
    """

    type: str
    module: str
    bases: list[tuple[str, str]]
    text: str
    args: list[Any]
    attributes: dict[str, Any]
    traceback: list[str]


class ChainedError(TypedDict):
    """An error, or one that it was raised because of, in few words.

    Attributes
    ----------
    type, text
        The name of its class, and the first line of its ``str``.
    notes
        The first line of each of its notes.
    place, line
        The last line of the user's that its traceback has: the cell or the file, as in `SeenFrame`,
        and the number of the line. Empty and 0 if it has none, or very many.
    """

    type: str
    text: str
    notes: list[str]
    place: str
    line: int


class ErrorReport(SingleError):
    """A reported error.

    Attributes
    ----------
    exceptions
        The errors that a group of exceptions is made of.
    chain
        The error, those that it is made of, and those that it was raised because of.
    """

    exceptions: list[SingleError]
    chain: NotRequired[list[ChainedError]]


def report(kind: type[BaseException], text: str) -> ErrorReport:
    """Return the report of an error that was not raised as an exception.

    Parameters
    ----------
    kind
        Its class.
    text
        The message for the user.
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


_MOST_CAUSES = 20
_TIME_IS_OVER = re.compile(
    r"gloo.*Timed out|Application timeout caused pair closure|NCCL.*(timed out|operation timeout)",
    re.I,
)
_OF_A_PEER = re.compile(
    r"gloo.*(Connection|Read error|Write error|Socket)|Connection (closed|reset) by peer"
    r"|NCCL.*abort|was aborted"
    # Torch finds no name for a group that was left, where it describes an error in it.
    r"|is not initialized in the world group map",
    re.I,
)


def is_consequence(text: str) -> bool:
    """Return whether an error's text is that of a collective which a peer has left.

    Such an error is only a consequence: the peer's error is the cause.
    """
    return _OF_A_PEER.search(text) is not None


def is_of_collective(error: BaseException | None) -> bool:
    """Return whether an error, or one of its causes, is a failed collective."""
    texts = texts_of(error, RuntimeError)
    return any(is_consequence(text) or _TIME_IS_OVER.search(text) for text in texts)


def texts_of(
    error: BaseException | None, kinds: type[Exception] | tuple[type[Exception], ...]
) -> Iterator[str]:
    """Yield the texts of an error and its causes, as far as they are of some kinds."""
    for _ in range(_MOST_CAUSES):
        # Methods of an error may be the user's code.
        if isinstance(error, kinds) and error.args and isinstance(error.args[0], str):
            yield error.args[0]
        error = error and (error.__cause__ or error.__context__)
