"""Profiles of ranks: sampled stacks, and recordings made during a run."""

from __future__ import annotations

from typing import Literal, TypedDict

from jupyter_sky.transport.protocol.inspection import SeenFrame
from jupyter_sky.transport.protocol.shape import Size

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
    """A stack, and how often it was sampled.

    Attributes
    ----------
    count
        How often.
    activity
        What the rank was doing.
    thread
        The thread that it belongs to; empty for the main thread.
    frames
        Its calls, the innermost first, as indices into the list of frames beside it.
    """

    count: Size
    activity: Activity
    thread: str
    frames: list[Size]


class SampleFields(TypedDict):
    """The samples of a rank.

    Attributes
    ----------
    asked, came
        How many samples were due, and how many could be taken.
    frames, stacks
        The calls that were found, and the stacks made of them.
    dropped
        How many samples had a stack for which there was no room.
    """

    asked: Size
    came: Size
    frames: list[SeenFrame]
    stacks: list[SampledStack]
    dropped: Size


class SampleCommand(TypedDict):
    """Sample the main thread's stack; a rank answers with `Sampled` messages.

    Attributes
    ----------
    number
        Distinguishes its answers from those to earlier commands.
    seconds, rate
        For how long at most, and how many times per second; 0 seconds end it.
    """

    op: Literal["sample"]
    number: int
    seconds: float
    rate: int


class Sampled(SampleFields):
    """The samples since the previous message; ``over`` says that nothing follows."""

    sampled: int
    over: bool


class RankProfile(SampleFields):
    """All samples of a rank.

    Attributes
    ----------
    rank
        Its number.
    run
        The run that it was in.
    is_script
        Whether that is a script, whose own process is not sampled.
    stuck
        How many of the stacks were written by the system, since no Python code could run in the
        rank.
    """

    rank: int
    run: str | None
    is_script: bool
    stuck: int


class ProfileRequest(TypedDict):
    """``profile``: start to sample ranks of this node; answered by `ProfileAnswer` at once.

    Attributes
    ----------
    ranks
        The ranks, including those of other nodes.
    seconds, rate
        For how long at most, and how many times per second.
    """

    ranks: list[int]
    seconds: float
    rate: int


class TakeProfileRequest(TypedDict):
    """``take_profile``: end a profile; answered by `ProfileAnswer` with the samples.

    Attributes
    ----------
    number
        Its number, from the answer with which it began.
    """

    number: int


class ProfileAnswer(TypedDict):
    """A profile: its number, and the samples of this node's ranks."""

    number: int
    ranks: list[RankProfile]


# What a rank records during a run on request


class Recorded(TypedDict):
    """A rank's recording of a run; ``data`` is compressed JSON of one of the types below."""

    recorded: str
    kind: RecordKind
    data: bytes


class CodeOver(TypedDict):
    """The user's code of a run is over on a rank, which now reads what it has recorded of it."""

    code_over: str


class Operation(TypedDict):
    """A torch operation: how often it was called, and its times in ns.

    Attributes
    ----------
    own, device
        Time in it without the operations that it called, and time on devices.
    """

    name: str
    calls: int
    own: int
    device: int


class TraceEvent(TypedDict):
    """An event of a trace: its name, category, thread, and times in ns."""

    name: str
    cat: str
    thread: str
    start: int
    duration: int


class TorchRecord(TypedDict):
    """The recording of torch's profiler on a rank; times are in ns since the epoch.

    Attributes
    ----------
    trouble
        Why there is no recording; empty if there is one.
    start, end, stopped
        When the cell began and ended, and when recording ended, which is earlier for a long cell.
    has_device
        Whether `bins` are about the time of a GPU.
    found
        How many events there were; `events` has the longest of them.
    bins
        For equal parts of the time, the percentages of data loading, compute and communication.
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
    """Torch's memory on a GPU, in bytes; ``used`` is the memory of all processes."""

    device: int
    name: str
    allocated: int
    reserved: int
    peak_allocated: int
    peak_reserved: int
    used: int
    total: int


class MemoryRecord(TypedDict):
    """The memory of a rank's process, its machine, and the GPUs that torch has used.

    Attributes
    ----------
    process, peak
        Bytes of its process at the end of the cell, and the maximum during it.
    available, total
        Bytes of its machine.
    why_no_gpu
        Why `devices` is empty.
    """

    process: int
    peak: int
    available: int
    total: int
    devices: list[DeviceMemory]
    why_no_gpu: str


class RecordedRequest(TypedDict):
    """``recorded``: return a part of a rank's recording of a run; answered by `RecordedAnswer`."""

    run: str
    rank: int
    kind: RecordKind
    offset: int
    limit: int


class RecordedAnswer(TypedDict):
    """A part of a recording, its total size (0 if there is none), and the node's clock in ns."""

    data: bytes
    size: Size
    clock: int
