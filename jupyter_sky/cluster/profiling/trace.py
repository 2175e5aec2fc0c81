"""The combined recordings of torch's profiler on the ranks of a run."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.cluster.profiling.profile import Alike, alike, told
from jupyter_sky.cluster.profiling.records import Fetched
from jupyter_sky.formatting import format_count, format_elapsed, format_ranks
from jupyter_sky.transport.protocol.profiling import TorchRecord, TraceEvent

PARTS = ("data", "compute", "communication")
"""What the numbers in `TorchRecord.bins` mean."""

WORDS = {
    "compute": "compute",
    "communication": "communication",
    "data": "data loading",
    "outside": "no operation of torch",
}
"""What a rank did, and the words for it where that is measured on the processor."""

ON_GPU = {**WORDS, "outside": "GPU idle"}

_MOST_EVENTS = 300_000  # most events in a file, of all ranks


@dataclass(frozen=True)
class OperationRow:
    """A torch operation: its calls, and the seconds in it alone on each rank."""

    name: str
    calls: int
    seconds: Mapping[int, float]

    @property
    def total(self) -> float:
        """Seconds on all ranks."""
        return sum(self.seconds.values())


@dataclass(frozen=True)
class Trace:
    """The records of ranks, with their clocks aligned.

    Attributes
    ----------
    records
        The records by rank.
    ahead
        By how many ns each rank's clock is ahead.
    missing
        Why there are no records of other ranks.
    """

    records: Mapping[int, TorchRecord]
    ahead: Mapping[int, int]
    missing: Mapping[int, str]

    @property
    def span(self) -> tuple[int, int]:
        """When the first rank began and the last one stopped recording, in ns."""
        return (
            min(each["start"] - self.ahead[rank] for rank, each in self.records.items()),
            max(each["stopped"] - self.ahead[rank] for rank, each in self.records.items()),
        )

    @property
    def on_gpu(self) -> bool:
        """Whether what is shown was measured on GPUs."""
        records = self.records.values()
        return bool(records) and all(each["has_device"] for each in records)

    @property
    def words(self) -> Mapping[str, str]:
        """The words for what ranks did."""
        return ON_GPU if self.on_gpu else WORDS

    @property
    def groups(self) -> tuple[Alike, ...]:
        """Groups of ranks with similar activities."""
        return alike({rank: _shares(each) for rank, each in self.records.items()}, self.words)

    @property
    def sentence(self) -> str:
        """A sentence about which ranks wait for which, or how all spend their time."""
        return told(self.groups, self.words)

    @property
    def cut(self) -> str:
        """A sentence about what was left out; empty if nothing was."""
        parts = []
        late = [each for each in self.records.values() if each["end"] - each["stopped"] > 10**8]
        if late:
            begun = format_elapsed(max(each["stopped"] - each["start"] for each in late) / 1e9)
            whole = format_elapsed(max(each["end"] - each["start"] for each in late) / 1e9)
            parts.append(f"the first {begun} of {whole} were recorded")
        found = sum(each["found"] for each in self.records.values())
        kept = sum(min(len(each["events"]), self._most) for each in self.records.values())
        if kept < found:
            parts.append(f"the file has the longest {kept:,} of {format_count(found, 'event')}")
        return "; ".join(parts)

    def operations(self, most: int = 12) -> list[OperationRow]:
        """Return the operations that took the most time on all ranks, the longest first."""
        seconds: defaultdict[str, dict[int, float]] = defaultdict(dict)
        calls: defaultdict[str, int] = defaultdict(int)
        for rank, record in self.records.items():
            for each in record["operations"]:
                time = each["device"] if record["has_device"] else each["own"]
                seconds[each["name"]][rank] = max(0, time) / 1e9
                calls[each["name"]] += each["calls"]
        rows = [OperationRow(name, calls[name], by_rank) for name, by_rank in seconds.items()]
        if self.on_gpu:
            rows = [each for each in rows if each.total]  # not what the processor does meanwhile
        return sorted(rows, key=lambda each: (-each.total, each.name))[:most]

    def write(self, file: Path) -> None:
        """Write a file for Perfetto and Chrome: one process per rank, with a common clock.

        Raises
        ------
        OSError
            If that is not possible.
        """
        # Events may have begun before the recording, and no time may be negative.
        starts = (
            each["start"] - self.ahead[rank]
            for rank, record in self.records.items()
            for each in record["events"]
        )
        begin = min(self.span[0], min(starts, default=self.span[0]))
        with file.open("w", encoding="utf-8") as stream:
            stream.write('{"displayTimeUnit": "ms", "traceEvents": [\n')
            for number, event in enumerate(self._events(begin)):
                stream.write(",\n" if number else "")
                json.dump(event, stream)
            stream.write("\n]}\n")

    @property
    def _most(self) -> int:
        return max(1, _MOST_EVENTS // max(1, len(self.records)))

    def _events(self, begin: int) -> Iterator[dict[str, Any]]:
        for rank, record in self.records.items():
            yield _named("process_name", rank, 0, name=f"rank {rank}")
            yield _named("process_sort_index", rank, 0, sort_index=rank)
            longest = sorted(record["events"], key=lambda each: -each["duration"])[: self._most]
            rows: dict[str, int] = {}
            for row, each in _in_rows(longest):
                if row not in rows:
                    rows[row] = len(rows)
                    yield _named("thread_name", rank, rows[row], name=row)
                yield {
                    "ph": "X",
                    "name": each["name"],
                    "cat": each["cat"],
                    "pid": rank,
                    "tid": rows[row],
                    "ts": (each["start"] - self.ahead[rank] - begin) / 1000,
                    "dur": each["duration"] / 1000,
                }


def trace(fetched: Fetched) -> Trace:
    """Return the fetched recordings as a trace."""
    records = {rank: each for rank, each in fetched.by_rank.items() if not each["trouble"]}
    missing = dict.fromkeys(fetched.missing, "nothing was recorded")
    for rank, each in fetched.by_rank.items():
        if each["trouble"]:
            missing[rank] = each["trouble"]
    return Trace(records, fetched.ahead, missing)


def missing_text(missing: Mapping[int, str]) -> list[str]:
    """Return lines that say why there are no records of ranks."""
    by_reason: defaultdict[str, list[int]] = defaultdict(list)
    for rank, why in missing.items():
        by_reason[why].append(rank)
    return [f"{format_ranks(ranks)}: {why}." for why, ranks in by_reason.items()]


def _in_rows(events: Iterable[TraceEvent]) -> Iterator[tuple[str, TraceEvent]]:
    """Yield events in order, each with the row to draw it in.

    Overlapping events in a row must be nested. An event that one thread begins and another one
    ends, like a collective, need not be nested: it is drawn in another row.
    """
    open_until: defaultdict[str, list[list[int]]] = defaultdict(list)
    for each in sorted(events, key=lambda each: (each["start"], -each["duration"])):
        start, end = each["start"], each["start"] + each["duration"]
        rows = open_until[each["thread"]]
        for ends in rows:
            while ends and ends[-1] <= start:
                ends.pop()
        fits = (at for at, ends in enumerate(rows) if not ends or end <= ends[-1])
        number = next(fits, len(rows))
        if number == len(rows):
            rows.append([])
        rows[number].append(end)
        yield f"{each['thread']} ({number + 1})" if number else each["thread"], each


def _named(what: str, rank: int, thread: int, **given: Any) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": rank, "tid": thread, "args": given}


def _shares(record: TorchRecord) -> dict[str, float]:
    count = max(1, len(record["bins"]))
    shares = {
        part: sum(each[at] for each in record["bins"] if len(each) > at) / count / 100
        for at, part in enumerate(PARTS)
    }
    return {**shares, "outside": max(0.0, 1 - sum(shares.values()))}
