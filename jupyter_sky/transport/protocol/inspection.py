"""What a node reports about its ranks: activity, resource usage and variables.

Only facts and digests of values travel, never the values themselves as pickles.
"""

from __future__ import annotations

from typing import Literal, NotRequired, TypedDict

from jupyter_sky.transport.protocol.shape import Size


class SeenFrame(TypedDict):
    """A call on the stack of a rank.

    Attributes
    ----------
    place
        The cell or the file, as the user knows it: ``"cell [7]"``, ``"data.py"``.
    line, function
        The line number, and the function that contains it; empty at the top level of a cell.
    text
        The text of the line, if that is known.
    own
        Whether it is the user's code, not a library's.
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
        Type and shapes of its tensors, like ``"float32 [4, 5]"``; empty if it has none.
    group
        The group that it has its number in: the name that torch has for it, and the backend.
    """

    operation: str
    number: int
    shapes: str
    group: str


class SeenCollective(BegunCollective):
    """A collective that a rank has begun and not finished.

    Attributes
    ----------
    ranks
        The ranks of its group.
    seconds
        For how long it has been waiting.
    """

    ranks: list[int]
    seconds: float


class SeenRank(TypedDict):
    """The activity of a rank at one moment.

    Attributes
    ----------
    rank
        Its number.
    run, ended
        The run that it is executing, and the last one that it finished, if any.
    answered
        Who answered: the rank itself; the system, if no Python code can run in the rank; or nobody,
        if its process does not run at all.
    frames
        Its stack, the innermost call first, down to the first line of the user's.
    collectives
        The collectives that it waits for, the oldest first.
    recent
        The last collectives that it has begun, the latest last.
    children
        Ended child processes that it has not waited for.
    prompt
        The kind of prompt that it waits at, as in `events.Prompted`; empty if none.
    stopping
        Whether its run was stopped and has not ended yet.
    failing
        Whether an error has ended its part but is not reported yet: making a traceback takes long.
    beside
        Whether a thread beside the main one is in the user's code, or in torch.distributed.
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
    stopping: NotRequired[bool]
    failing: NotRequired[bool]
    beside: NotRequired[bool]


class InspectRequest(TypedDict):
    """``inspect``: report what the ranks of this node are doing; answered by `InspectAnswer`.

    Attributes
    ----------
    after
        If greater than 0: only if one of them has waited that many seconds in a collective.
    """

    after: float


class InspectAnswer(TypedDict):
    """What the ranks of a node are doing; empty if none has waited that long."""

    seen: list[SeenRank]


PARTS_COMPARED = 100_000
"""Parts of a value that are compared one by one; those behind them are left out."""

SMALL = 64 * 1024
"""Bytes of a value up to which a digest costs next to nothing, so that each table compares it."""

RANDOM = "random states"
"""The name of the states of random number generators, which no variable can have."""

Question = Literal["names", "digests", "parts", "numbers"]
"""What is asked of the names of a rank.

``names``: what they stand for; ``digests``: a digest of each as a whole; ``parts``: the digest of
each part of one; ``numbers``: the numbers of one part.
"""


class LookFields(TypedDict):
    """A question about the names of ranks.

    Attributes
    ----------
    what
        The question.
    names
        The names it is about; empty for all. For ``parts`` there is one; for ``numbers``, one and
        the path of a part.
    random
        Whether the states of random number generators count as a name (`RANDOM`).
    start
        The index of the first part.
    """

    what: Question
    names: list[str]
    random: bool
    start: int


class LookRequest(LookFields):
    """``look``: ask ranks of this node about their names; answered by `LookAnswer`."""

    ranks: list[int]


class SeenName(TypedDict):
    """The value of a name on a rank.

    Attributes
    ----------
    name
        The name.
    type, shape, dtype, device
        As shown to users; empty if it has none.
    size
        In bytes; ``None`` if that is not known.
    digest
        Of the whole value; empty if none was made.
    parts
        How many parts it has; 0 if they were not counted.
    """

    name: str
    type: str
    shape: str
    dtype: str
    device: str
    size: Size | None
    digest: str
    parts: Size


class SeenPart(TypedDict):
    """A part of a name's value, like a parameter of a model.

    Attributes
    ----------
    path
        Its path, as a Python expression.
    what
        Its type and shape.
    digest
        Of its value; empty if it has none.
    sharded
        Whether each rank holds a different piece of it.
    """

    path: str
    what: str
    digest: str
    sharded: bool


class LookedRank(TypedDict):
    """The answer of a rank.

    Attributes
    ----------
    rank
        Its number.
    state
        Whether it has answered; ``busy`` means that a run prevented it.
    trouble
        Why it could not answer, in words.
    names
        Values of names, sorted; empty for ``parts`` and ``numbers``.
    more
        How many more names there are.
    parts
        The parts, starting at the requested one.
    numbers
        Numbers of a part, as little-endian doubles.
    sampled
        Whether these are only some of its numbers.
    """

    rank: int
    state: Literal["answered", "busy", "silent"]
    trouble: str
    names: list[SeenName]
    more: Size
    parts: list[SeenPart]
    numbers: bytes
    sampled: bool


class LookAnswer(TypedDict):
    """The answers of a node's ranks."""

    looked: list[LookedRank]


class RankUsage(TypedDict):
    """The resource usage of a rank, and its last line of output.

    Attributes
    ----------
    line
        The last line that it printed.
    utilisation
        Of its GPU, or of one processor if it has none: 0 to 1.
    memory
        Used and total bytes, of the GPU or of the machine.
    """

    rank: int
    line: str
    utilisation: float | None
    memory: tuple[Size, Size] | None


class RankHistory(TypedDict):
    """The resource usage of a rank in the last minutes, at the times of a `UsageHistory`.

    A list is empty if nothing was measured, and has ``None`` for times without a measurement.

    Attributes
    ----------
    processor
        How many processors it kept busy.
    memory
        Bytes of the machine's memory.
    gpu, gpu_memory
        The share of time in which its GPU was busy, and bytes of the GPU's memory.
    gpu_total
        Total bytes of the GPU.
    """

    rank: int
    processor: list[float | None]
    memory: list[int | None]
    gpu: list[float | None]
    gpu_memory: list[int | None]
    gpu_total: int | None


class UsageHistory(TypedDict):
    """The resource usage of a machine and its ranks in the last minutes, or a part of that.

    Attributes
    ----------
    times
        When it was measured, in milliseconds since the epoch, strictly increasing.
    processors, memory_total
        How many processors the machine has, and how many bytes of memory.
    processor, memory
        How many of them are busy or in use, by any process.
    network
        Bytes per second in both directions, without the loopback interface.
    """

    times: list[int]
    processors: int
    memory_total: int
    processor: list[float | None]
    memory: list[int | None]
    network: list[float | None]
    ranks: list[RankHistory]
