"""What torch's profiler has recorded in a cell: longest events, operations, and a timeline."""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jupyter_sky.transport.protocol.profiling import Operation, TorchRecord, TraceEvent

_MOST_EVENTS = 30_000  # most events to keep for the trace
_MOST_OPERATIONS = 40
_BINS = 300
_LONGEST_NAME = 200

_COMMUNICATION = ("gloo:", "nccl:", "c10d::", "ncclDevKernel", "ncclKernel", "mpi:", "ucc:")
_WRAPPERS = ("record_param_comms",)
_DATA = "enumerate(DataLoader)#"

_Spans = list[tuple[int, int]]


class TorchEvent(NamedTuple):
    """An event: its times in nanoseconds, its thread or stream, and its GPU, if it is of one."""

    start: int
    end: int
    name: str
    thread: int
    device: int | None
    is_annotation: bool

    @property
    def category(self) -> str:
        """What the time was for."""
        if self.name.startswith(_DATA):
            return "data"
        if self.name.startswith(_COMMUNICATION):
            return "communication"
        return "annotation" if self.is_annotation else "compute"


def nothing(trouble: str) -> TorchRecord:
    """Return a record without events, and why there are none."""
    return {
        "trouble": trouble,
        "start": 0,
        "end": 0,
        "stopped": 0,
        "has_device": False,
        "found": 0,
        "events": [],
        "operations": [],
        "bins": [],
    }


def record_of(
    events: Sequence[TorchEvent], found: int, start: int, end: int, stopped: int
) -> TorchRecord:
    """Return the record of a cell.

    Parameters
    ----------
    events
        The events that were read.
    found
        How many there were.
    start, end, stopped
        When the cell began, when it ended, and when recording did.
    """
    has_device = any(event.device is not None for event in events)
    longest = heapq.nlargest(_MOST_EVENTS, events, key=lambda each: each.end - each.start)
    # With a GPU, its time is what counts; the processor only issues work.
    at_work = [each for each in events if not has_device or each.device is not None]
    loading = [each for each in events if each.category == "data"]
    return {
        "trouble": "",
        "start": start,
        "end": end,
        "stopped": stopped,
        "has_device": has_device,
        "found": found,
        "events": [_trace_event(each) for each in sorted(longest)],
        "operations": _operations(events),
        "bins": _bins(loading, at_work, start, stopped),
    }


def read_event(event: Any) -> TorchEvent:
    """Return an event of torch's."""
    is_device = getattr(event.device_type(), "name", "CPU") != "CPU"
    return TorchEvent(
        event.start_ns(),
        event.start_ns() + max(0, event.duration_ns()),
        event.name()[:_LONGEST_NAME],
        event.device_resource_id() if is_device else event.start_thread_id(),
        event.device_index() if is_device else None,
        event.is_user_annotation(),
    )


def _trace_event(event: TorchEvent) -> TraceEvent:
    where = f"thread {event.thread}"
    if event.device is not None:
        where = f"GPU {event.device}, stream {event.thread}"
    return {
        "name": event.name,
        "cat": event.category,
        "thread": where,
        "start": event.start,
        "duration": event.end - event.start,
    }


def _operations(events: Iterable[TorchEvent]) -> list[Operation]:
    """Return the operations that took the most time, without the operations they called.

    Those of a GPU come first: the processor takes much longer to hand over a small one.
    """
    threads: defaultdict[int, list[TorchEvent]] = defaultdict(list)
    calls: defaultdict[str, int] = defaultdict(int)
    own: defaultdict[str, int] = defaultdict(int)
    device: defaultdict[str, int] = defaultdict(int)
    for event in events:
        if (event.is_annotation and event.category == "annotation") or event.name in _WRAPPERS:
            continue
        calls[event.name] += 1
        if event.device is not None:
            device[event.name] += event.end - event.start
        else:
            threads[event.thread].append(event)
    for each in threads.values():
        each.sort(key=lambda event: (event.start, -event.end))
        open_events: list[TorchEvent] = []
        for event in each:
            while open_events and open_events[-1].end <= event.start:
                open_events.pop()
            own[event.name] += event.end - event.start
            if open_events:
                own[open_events[-1].name] -= min(event.end, open_events[-1].end) - event.start
            open_events.append(event)
    largest = heapq.nlargest(
        _MOST_OPERATIONS, calls, key=lambda name: (device[name], max(0, own[name]))
    )
    return [
        {"name": name, "calls": calls[name], "own": max(0, own[name]), "device": device[name]}
        for name in largest
    ]


def _bins(
    loading: Iterable[TorchEvent], events: Sequence[TorchEvent], start: int, end: int
) -> list[list[int]]:
    """Return the shares of time spent on loading, computing, and communication.

    A collective that overlaps with computation costs no time.
    """
    data = _merged((each.start, each.end) for each in loading)
    compute = _merged((each.start, each.end) for each in events if each.category == "compute")
    communication = _merged(
        (each.start, each.end) for each in events if each.category == "communication"
    )
    compute = _without(compute, data)
    communication = _without(_without(communication, data), compute)
    width = max(1.0, (end - start) / _BINS)
    bins = [[0.0, 0.0, 0.0] for _ in range(_BINS)]
    for kind, spans in enumerate((data, compute, communication)):
        for first, last in spans:
            at, until = max(first, start), min(last, end)
            while at < until:
                number = min(_BINS - 1, int((at - start) / width))
                edge = min(until, start + (number + 1) * width) if number < _BINS - 1 else until
                bins[number][kind] += (edge - at) / width
                at = max(int(edge), at + 1)
    return [[min(100, round(100 * part)) for part in each] for each in bins]


def _merged(spans: Iterable[tuple[int, int]]) -> _Spans:
    """Merge spans into sorted, disjoint ones that cover the same time."""
    found: _Spans = []
    for start, end in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        elif end > start:
            found.append((start, end))
    return found


def _without(spans: _Spans, taken: _Spans) -> _Spans:
    """Return the parts of disjoint spans that lie outside other disjoint spans."""
    found: _Spans = []
    at = 0
    for start, end in spans:
        while at < len(taken) and taken[at][1] <= start:
            at += 1
        left, number = start, at
        while number < len(taken) and taken[number][0] < end:
            if taken[number][0] > left:
                found.append((left, taken[number][0]))
            left = max(left, taken[number][1])
            number += 1
        if left < end:
            found.append((left, end))
    return found
