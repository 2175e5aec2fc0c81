"""Profiles of ranks: stacks that were found at many moments, and what is recorded during a run."""

from __future__ import annotations

from typing import Literal, TypedDict

from jupyter_sky.transport.protocol.inspection import SeenFrame

Activity = Literal["compute", "communication", "data", "waiting", "outside", "beside"]
"""What a rank did when it was looked at: it counts, or does something with a collective, loads
data, waits for something else, or is in no line of a cell. A stack beside is one of a further
thread, whose time comes on top of the rank's."""

RecordKind = Literal["torch", "memory"]

PACKED_SIZE = 24 * 1024 * 1024
"""Bytes of a record at most, as it is sent: compressed JSON."""

PLAIN_SIZE = 8 * PACKED_SIZE
"""Bytes of a record at most when it is unpacked; it is the agent's claim that it is no more."""


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


# What a rank records during a run, if it is asked to


class Recorded(TypedDict):
    """A rank has recorded something in a run; ``data`` is JSON of a type below, compressed."""

    recorded: str
    kind: RecordKind
    data: bytes


class Operation(TypedDict):
    """An operation of torch: how often it was called, and the time in it alone, in ns.

    Attributes
    ----------
    own, device
        Time in it without what it called, and time on devices.
    """

    name: str
    calls: int
    own: int
    device: int


class TraceEvent(TypedDict):
    """An event of a trace: its name, category and thread, and when it was, in ns."""

    name: str
    cat: str
    thread: str
    start: int
    duration: int


class TorchRecord(TypedDict):
    """What torch's profiler has recorded on a rank; times are in ns since the epoch.

    Attributes
    ----------
    trouble
        Why there is nothing; empty if there is something.
    start, end, stopped
        When the cell began and ended; when recording ended, which is earlier if that took long.
    has_device
        Whether the time of a GPU is what `bins` tell.
    found
        How many events there were; `events` are the longest.
    bins
        For each of equal parts of the time, the percentage of data loading, compute, communication.
    """

    trouble: str
    start: int
    end: int
    stopped: int
    has_device: bool
    found: int
    events: list[TraceEvent]
    operations: list[Operation]
    bins: list[list[int]]


class DeviceMemory(TypedDict):
    """Torch's memory on a GPU, in bytes; ``used`` is that of all processes."""

    device: int
    name: str
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    used: int
    total: int


class MemoryRecord(TypedDict):
    """The memory of a rank: of its process, of its machine, and of the GPUs that torch has used.

    Attributes
    ----------
    process, peak
        Bytes of its process at the end of the cell, and the most during it.
    available, total
        Bytes of its machine.
    why_no_gpu
        Why `devices` are empty.
    """

    process: int
    peak: int
    available: int
    total: int
    devices: list[DeviceMemory]
    why_no_gpu: str


class RecordedRequest(TypedDict):
    """``recorded``: give a part of what a rank has recorded in a run; see `RecordedAnswer`."""

    run: str
    rank: int
    kind: RecordKind
    offset: int
    limit: int


class RecordedAnswer(TypedDict):
    """A part of a record, the size of all of it, and the node's clock in ns; 0 bytes for none."""

    data: bytes
    size: int
    clock: int
