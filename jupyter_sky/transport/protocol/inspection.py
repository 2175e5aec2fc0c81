"""What a rank is doing at a moment, as its node tells it: its stack, and its collectives."""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict


class SeenFrame(TypedDict):
    """A call on the stack of a rank.

    Attributes
    ----------
    place
        The cell or the file, as a user knows it: ``"cell [7]"``, ``"data.py"``.
    line, function
        The line in it, and the function that the line is in; empty at the top of a cell.
    text
        The line's text, where that is known.
    own
        Whether it is the user's code, and no library's.
    """

    place: str
    line: int
    function: str
    text: str
    own: bool


class BegunCollective(TypedDict):
    """A collective that a rank has begun.

    Attributes
    ----------
    operation
        Its name in torch, like ``"all_reduce"``.
    number
        Its number in its group, from 1; 0 if that is not known.
    shapes
        Type and sizes of its tensors, like ``"float32 [4, 5]"``; empty if it has none.
    group
        The name of its group, as torch has it.
    """

    operation: str
    number: int
    shapes: str
    group: str


class SeenCollective(BegunCollective):
    """A collective that a rank has begun and not ended.

    Attributes
    ----------
    ranks
        The ranks of its group.
    seconds
        Since when it waits.
    """

    ranks: list[int]
    seconds: float


class SeenRank(TypedDict):
    """A rank at a moment.

    Attributes
    ----------
    rank
        Its number.
    run, ended
        The run that it is busy with, and the one that it has come to the end of last, if any.
    answered
        Who has told: the rank itself; or the system, as no Python code can run in it; or nobody, as
        its process does nothing at all.
    frames
        Its stack, the innermost call first, down to the first line of the user's.
    collectives
        What it waits for, the oldest first.
    recent
        The last ones that it has begun, the latest last.
    children
        Processes that it has started and that have ended, without its having noticed.
    prompt
        What the user is asked for there, as `events.Prompted` has it; empty if nothing.
    """

    rank: int
    run: str | None
    ended: str | None
    answered: Literal["itself", "system", "nobody"]
    frames: list[SeenFrame]
    collectives: list[SeenCollective]
    recent: list[BegunCollective]
    children: list[int]
    prompt: NotRequired[str]


class InspectRequest(TypedDict):
    """``inspect``: tell what the ranks of this node are doing; answered by `InspectAnswer`.

    Attributes
    ----------
    after
        With more than 0: only if one of them has waited in a collective for so many seconds.
    """

    after: float


class InspectAnswer(TypedDict):
    """What the ranks of a node are doing; none of them where it was not worth it."""

    seen: list[SeenRank]
