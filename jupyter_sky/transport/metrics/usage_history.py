"""What a machine and its ranks used in the last ten minutes, as agent and notebook keep it.

There is a sample every few seconds, and so many of them at most: neither side grows with time.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from jupyter_sky.transport.protocol.inspection import RankHistory, UsageHistory

EVERY = 5.0
"""Seconds between two samples."""

KEPT = 120
"""Samples that are kept: ten minutes."""

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class RankSample:
    """What a rank used at a moment; ``None`` where that was not measured.

    Attributes
    ----------
    processor, memory
        Processors that it kept busy, and bytes of the machine's memory.
    gpu, gpu_memory
        The part of the time that its GPU was busy, and bytes of it.
    """

    processor: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None


@dataclass(frozen=True)
class Sample:
    """What a machine and its ranks used at a moment.

    Attributes
    ----------
    time
        In milliseconds since the epoch, by the clock of the machine.
    processor, memory, network
        Processors that were busy, bytes of memory in use, and bytes a second that came and went.
    ranks
        The ranks that had a process.
    arrived
        When the notebook got it, by a clock of the notebook that no two samples share.
    """

    time: int
    processor: float | None
    memory: int | None
    network: float | None
    ranks: Mapping[int, RankSample]
    arrived: int = 0


@dataclass(frozen=True)
class Sizes:
    """What a machine has: processors, bytes of memory, and bytes of the GPU of each rank."""

    processors: int = 0
    memory: int = 0
    gpus: Mapping[int, int] = field(default_factory=dict)


class Samples:
    """The samples of a machine, the oldest first.

    Attributes
    ----------
    sizes
        What the machine has.
    """

    def __init__(self) -> None:
        self.sizes = Sizes()
        self._samples: deque[Sample] = deque(maxlen=KEPT)

    @property
    def last(self) -> int:
        """The time of the last sample; 0 before the first."""
        return self._samples[-1].time if self._samples else 0

    def add(self, sample: Sample) -> None:
        """Add a sample, unless a later one is known already."""
        if sample.time > self.last:
            self._samples.append(sample)

    def add_part(self, part: UsageHistory, arrived: int = 0) -> None:
        """Add what another process has sent of its samples."""
        gpus = {each["rank"]: each["gpu_total"] or 0 for each in part["ranks"]}
        self.sizes = Sizes(part["processors"], part["memory_total"], {**self.sizes.gpus, **gpus})
        for at, time in enumerate(part["times"]):
            ranks = {each["rank"]: _rank_sample(each, at) for each in part["ranks"]}
            processor, memory = _at(part["processor"], at), _at(part["memory"], at)
            self.add(Sample(time, processor, memory, _at(part["network"], at), ranks, arrived))

    def after(self, time: int) -> UsageHistory | None:
        """Return the samples that were taken later; ``None`` if there are none."""
        return as_columns([each for each in list(self._samples) if each.time > time], self.sizes)

    def arrived_after(self, moment: int) -> list[Sample]:
        """Return the samples that the notebook got later."""
        # A copy, since it is asked for in another thread than the one that adds.
        return [each for each in list(self._samples) if each.arrived > moment]


def as_columns(samples: Sequence[Sample], sizes: Sizes) -> UsageHistory | None:
    """Return samples as they are sent; ``None`` if there are none."""
    if not samples:
        return None
    ranks = sorted({rank for each in samples for rank in each.ranks})
    return {
        "times": [each.time for each in samples],
        "processors": sizes.processors,
        "memory_total": sizes.memory,
        "processor": column((each.processor for each in samples), _two_digits),
        "memory": column((each.memory for each in samples), rounded),
        "network": column((each.network for each in samples), rounded),
        "ranks": [
            rank_columns(rank, [each.ranks.get(rank, _NOTHING) for each in samples], sizes)
            for rank in ranks
        ],
    }


def rank_columns(rank: int, samples: Sequence[RankSample], sizes: Sizes) -> RankHistory:
    """Return the samples of a rank as they are sent."""
    return {
        "rank": rank,
        "processor": column((each.processor for each in samples), _two_digits),
        "memory": column((each.memory for each in samples), rounded),
        "gpu": column((each.gpu for each in samples), _two_digits),
        "gpu_memory": column((each.gpu_memory for each in samples), rounded),
        "gpu_total": sizes.gpus.get(rank) or None,
    }


def column(
    values: Iterable[_Number | None], exactness: Callable[[_Number], _Number] | None = None
) -> list[_Number | None]:
    """Return values as a list, which is empty where there are none.

    Parameters
    ----------
    values
        The values.
    exactness
        Returns a value as exactly as it is shown: what is sent is short then.
    """
    found = [value if value is None or exactness is None else exactness(value) for value in values]
    return found if any(value is not None for value in found) else []


def rounded(value: float) -> int:
    """Return a number of bytes as exactly as it is shown."""
    return int(float(f"{value:.3g}"))


_NOTHING = RankSample()


def _two_digits(value: float) -> float:
    return round(value, 2)


def _at(values: Sequence[_Number | None], at: int) -> _Number | None:
    return values[at] if values else None


def _rank_sample(history: RankHistory, at: int) -> RankSample:
    return RankSample(
        _at(history["processor"], at),
        _at(history["memory"], at),
        _at(history["gpu"], at),
        _at(history["gpu_memory"], at),
    )
