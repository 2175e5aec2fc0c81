"""The resource usage of a machine and its ranks in the last ten minutes.

Agent and notebook both keep a bounded number of samples, one every few seconds.
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
    """What a rank used at one moment; ``None`` if it was not measured.

    Attributes
    ----------
    processor, memory
        The number of processors that it kept busy, and bytes of the machine's memory.
    gpu, gpu_memory
        The share of time in which its GPU was busy, and bytes of the GPU's memory.
    """

    processor: float | None = None
    memory: int | None = None
    gpu: float | None = None
    gpu_memory: int | None = None


@dataclass(frozen=True)
class Sample:
    """What a machine and its ranks used at one moment.

    Attributes
    ----------
    time
        Milliseconds since the epoch, by the machine's clock.
    processor, memory, network
        The number of busy processors, bytes of memory in use, and bytes per second in both
        directions.
    ranks
        The ranks that had a process.
    arrived
        When the notebook received it, by a clock that never shows the same time twice.
    """

    time: int
    processor: float | None
    memory: int | None
    network: float | None
    ranks: Mapping[int, RankSample]
    arrived: int = 0


@dataclass(frozen=True)
class Sizes:
    """The size of a machine: processors, bytes of memory, and bytes of each rank's GPU."""

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
        """Add samples that another process has sent."""
        gpus = {each["rank"]: each["gpu_total"] or 0 for each in part["ranks"]}
        self.sizes = Sizes(part["processors"], part["memory_total"], {**self.sizes.gpus, **gpus})
        for at, time in enumerate(part["times"]):
            ranks = {each["rank"]: _rank_sample(each, at) for each in part["ranks"]}
            processor, memory = _at(part["processor"], at), _at(part["memory"], at)
            self.add(Sample(time, processor, memory, _at(part["network"], at), ranks, arrived))

    def after(self, time: int) -> UsageHistory | None:
        """Return the samples taken after a time; ``None`` if there are none."""
        return as_columns([each for each in list(self._samples) if each.time > time], self.sizes)

    def arrived_after(self, moment: int) -> list[Sample]:
        """Return the samples that the notebook received after a time."""
        # A copy, since another thread may be adding samples.
        return [each for each in list(self._samples) if each.arrived > moment]


def as_columns(samples: Sequence[Sample], sizes: Sizes) -> UsageHistory | None:
    """Return samples in the form in which they are sent; ``None`` if there are none."""
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
    """Return the samples of a rank in the form in which they are sent."""
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
    """Return values as a list, which is empty if all are ``None``.

    Parameters
    ----------
    values
        The values.
    exactness
        Rounds a value to the precision that is shown, which keeps the message short.
    """
    found = [value if value is None or exactness is None else exactness(value) for value in values]
    return found if any(value is not None for value in found) else []


def rounded(value: float) -> int:
    """Round a number of bytes to the precision that is shown."""
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
