"""What a node tells of its ranks: what they are doing and using, and what their names stand for.

Of values only plain facts and digests travel, never the values themselves as pickles.
"""

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
    stopping
        Whether its run was stopped, and has not come to its end.
    failing
        Whether an error has ended its part, and is not told yet: to make a traceback takes long.
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


PARTS_COMPARED = 100_000
"""Parts of a value that are compared one by one; those behind them are left out."""

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
        The names it is about; all of them where there is none. Of ``parts`` there is one, and of
        ``numbers`` one and the path of a part.
    random
        Whether the states of random number generators count as a name, which is `RANDOM`.
    start
        The part to begin with.
    """

    what: Question
    names: list[str]
    random: bool
    start: int


class LookRequest(LookFields):
    """``look``: ask ranks of this node about their names; answered by `LookAnswer`."""

    ranks: list[int]


class SeenName(TypedDict):
    """What a name stands for on a rank.

    Attributes
    ----------
    name
        The name.
    type, shape, dtype, device
        As a user reads them; empty where there is none.
    size
        In bytes; ``None`` if that is not known.
    digest
        Of the whole value; empty where none was made.
    parts
        How many parts it has; 0 where they were not counted.
    """

    name: str
    type: str
    shape: str
    dtype: str
    device: str
    size: int | None
    digest: str
    parts: int


class SeenPart(TypedDict):
    """A part of what a name stands for, like a parameter of a model.

    Attributes
    ----------
    path
        Where it is, as Python has it.
    what
        What it is: type and shape.
    digest
        Of its value; empty if none can be made.
    sharded
        Whether each rank has another piece of it.
    """

    path: str
    what: str
    digest: str
    sharded: bool


class LookedRank(TypedDict):
    """What a rank has answered.

    Attributes
    ----------
    rank
        Its number.
    state
        Whether it has answered; ``busy`` means that a run was in the way.
    trouble
        Why it could not, in words.
    names
        What names stand for, sorted; of the question after ``parts`` and ``numbers`` none.
    more
        How many names there are beyond those.
    parts
        Parts from the one that was asked for.
    numbers
        Numbers of a part as doubles, the lowest byte first.
    sampled
        Whether these are some of its numbers only.
    """

    rank: int
    state: Literal["answered", "busy", "silent"]
    trouble: str
    names: list[SeenName]
    more: int
    parts: list[SeenPart]
    numbers: bytes
    sampled: bool


class LookAnswer(TypedDict):
    """What the ranks of a node have answered."""

    looked: list[LookedRank]


class RankUsage(TypedDict):
    """What a rank uses of its node, and what it printed last.

    Attributes
    ----------
    line
        The last line that it printed.
    utilisation
        Of its GPU, or of one processor where it has none: 0 to 1.
    memory
        Bytes used and bytes in all, of the GPU or of the machine.
    """

    rank: int
    line: str
    utilisation: float | None
    memory: list[int] | None


class RankHistory(TypedDict):
    """What a rank used in the last minutes, at the times of a `UsageHistory`.

    A list is empty where nothing of it was measured, and has ``None`` where it was not then.

    Attributes
    ----------
    processor
        Processors that it kept busy: 1.0 is one of them.
    memory
        Bytes of the machine's memory.
    gpu, gpu_memory
        Of its GPU: the part of the time that it was busy, and bytes.
    gpu_total
        Bytes that the GPU has.
    """

    rank: int
    processor: list[float | None]
    memory: list[int | None]
    gpu: list[float | None]
    gpu_memory: list[int | None]
    gpu_total: int | None


class UsageHistory(TypedDict):
    """What a machine and its ranks used in the last minutes, or a part of that.

    Attributes
    ----------
    times
        When it was measured, in milliseconds since the epoch; each is later than the one before.
    processors, memory_total
        How many processors the machine has, and how many bytes of memory.
    processor, memory
        How many of them are busy or in use, by whatever runs there.
    network
        Bytes a second that came and went, but to and from the machine itself.
    """

    times: list[int]
    processors: int
    memory_total: int
    processor: list[float | None]
    memory: list[int | None]
    network: list[float | None]
    ranks: list[RankHistory]
