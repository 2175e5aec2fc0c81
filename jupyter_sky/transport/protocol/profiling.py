"""Profiles of ranks: the stacks that were found on them, at many moments of a time."""

from __future__ import annotations

from typing import Literal, TypedDict

from jupyter_sky.transport.protocol.inspection import SeenFrame

Activity = Literal["compute", "communication", "data", "waiting", "outside", "beside"]
"""What a rank did when it was looked at: it counts, or does something with a collective, loads
data, waits for something else, or is in no line of a cell. A stack beside is one of a further
thread, whose time comes on top of the rank's."""


class SampledStack(TypedDict):
    """A stack, and how often it was found.

    Attributes
    ----------
    count
        How often.
    activity
        What the rank did.
    thread
        The thread that it is of; empty for the main thread.
    frames
        Its calls, the innermost first, as positions in the list of frames beside it.
    """

    count: int
    activity: Activity
    thread: str
    frames: list[int]


class SampleFields(TypedDict):
    """What was found on a rank.

    Attributes
    ----------
    asked, came
        How often it was to be looked at, and how often that was possible.
    frames, stacks
        The calls that were found, and the stacks of them.
    dropped
        How often a stack was found for which there was no room.
    """

    asked: int
    came: int
    frames: list[SeenFrame]
    stacks: list[SampledStack]
    dropped: int


class SampleCommand(TypedDict):
    """Look at the main thread's stack again and again; a rank answers with `Sampled`s.

    Attributes
    ----------
    number
        Tells these answers from those of another time.
    seconds, rate
        For how long, at most, and how often in a second; 0 seconds end it.
    """

    op: Literal["sample"]
    number: int
    seconds: float
    rate: int


class Sampled(SampleFields):
    """What was found since the message before it; ``over`` says that nothing follows."""

    sampled: int
    over: bool


class RankProfile(SampleFields):
    """What was found on a rank in all.

    Attributes
    ----------
    rank
        Its number.
    run
        The run that it was in.
    is_script
        Whether that is a script, in a process of its own, which is not looked into.
    stuck
        How many of the stacks were written by the system, as no Python code could run in the rank.
    """

    rank: int
    run: str | None
    is_script: bool
    stuck: int


class ProfileRequest(TypedDict):
    """``profile``: look at ranks of this node from now on; answered by `ProfileAnswer` at once.

    Attributes
    ----------
    ranks
        The ranks, also those of other nodes.
    seconds, rate
        For how long, at most, and how often in a second.
    """

    ranks: list[int]
    seconds: float
    rate: int


class TakeProfileRequest(TypedDict):
    """``take_profile``: end a profile, and give what was found, as a `ProfileAnswer`.

    Attributes
    ----------
    number
        The number in the answer with which it began.
    """

    number: int


class ProfileAnswer(TypedDict):
    """A profile: its number, and what was found on the ranks of this node."""

    number: int
    ranks: list[RankProfile]
