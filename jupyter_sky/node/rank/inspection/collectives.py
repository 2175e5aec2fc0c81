"""The unfinished collectives of a rank, as recorded by torch itself.

torch has two flight recorders, one for gloo and one for NCCL: ring buffers of all collectives,
including those begun by C++ code, like the gradients of DDP. The side thread reads them here, which
takes no lock of the main thread. Older versions of torch only record those of NCCL; then the
operation is taken from the stack, and its number from the group.

A group may have both, of which each counts its own collectives.
"""

from __future__ import annotations

import contextlib
import heapq
import os
import pickle
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from jupyter_sky.node.rank.group.torch_groups import backends, groups
from jupyter_sky.transport.protocol.inspection import BegunCollective, SeenCollective

RECORDED = 512
"""Collectives that each recorder keeps. What NCCL has been given and not begun has to find room."""

_TYPES = {"Float": "float32", "Double": "float64", "Half": "float16", "BFloat16": "bfloat16"}
_TYPES |= {"Long": "int64", "Int": "int32", "Short": "int16", "Char": "int8", "Byte": "uint8"}
_MOST_SHAPES = 3
_POLL_FIRST, _POLL_LAST = 0.01, 0.1  # seconds
_RECENT = 8
_IN_PYTHON = "torch/distributed/distributed_c10d.py"
_OF_GLOO, _OF_NCCL = "_dump_fr_trace", "_dump_nccl_trace"


def prepare() -> None:
    """Set how many collectives torch records, unless the user has; call before forming a group."""
    os.environ.setdefault("TORCH_FR_BUFFER_SIZE", str(RECORDED))


class CollectiveRecords:
    """Reads torch's records of the groups of this process."""

    def __init__(self) -> None:
        self._since = 0
        self._numbers: Mapping[str, int] = {}
        self._called: tuple[str, int, float] | None = None
        self._begun: Mapping[str, int] = {}

    def begin(self) -> None:
        """Forget the collectives of the previous group: broken ones never count as ended."""
        self._since = time.time_ns()
        self._numbers = self._begun = {}

    def begun(self) -> dict[str, tuple[int, int]]:
        """Return groups in which collectives began since the last call.

        Returns
        -------
        dict of tuple
            By torch's name for each: the number of the last collective of its usual backend, and
            the number of ranks in the group.
        """
        before = self._begun
        self._begun = {name: _number(group) for name, group in groups()}
        if self._begun == before:
            return {}  # this is asked after each run
        sizes = {name: group.size() for name, group in groups()}
        changed = self._begun.items() - before.items()
        return {name: (number, sizes[name]) for name, number in changed}

    def has_moved(self) -> bool:
        """Return whether there were collectives since the last call."""
        numbers = {
            f"{name} {device}": _number(backend)
            for name, group in groups()
            for device, backend in backends(group)
        }
        before, self._numbers = self._numbers, numbers
        return numbers != before

    def read(self, on_gpu: bool = True) -> tuple[list[SeenCollective], list[BegunCollective]]:
        """Return the unfinished collectives, the oldest first, and the last ones that began.

        Parameters
        ----------
        on_gpu
            Whether to return those of NCCL. To the processor, they are over once they are handed
            over.
        """
        known = dict(groups())
        waiting: dict[str, SeenCollective] = {}
        recent: deque[BegunCollective] = deque(maxlen=_RECENT)
        for entry in _entries([_OF_GLOO, _OF_NCCL] if on_gpu else [_OF_GLOO]):
            name = entry["process_group"][0]
            backend, _, operation = entry["profiling_name"].partition(":")
            numbered = _numbered(name, backend)
            if name not in known or entry["time_created_ns"] < self._since or entry["is_p2p"]:
                continue
            begun: BegunCollective = {
                "operation": operation,
                "number": entry["collective_seq_id"],
                "shapes": _shapes(entry),
                "group": numbered,
            }
            recent.append(begun)
            if entry["retired"] or entry["state"] == "completed":
                # Earlier ones of the same backend that have not ended never will.
                waiting.pop(numbered, None)
            elif numbered not in waiting:
                seconds = max(0.0, (time.time_ns() - entry["time_created_ns"]) / 1e9)
                waiting[numbered] = {**begun, "ranks": _ranks(known[name]), "seconds": seconds}
        found = list(waiting.values()) or list(self._called_from_python(known))
        return sorted(found, key=lambda each: -each["seconds"]), list(recent)

    def wait_until_ended(self, seconds: float, on_gpu: bool = True) -> bool:
        """Wait for the collectives that have begun; return whether they ended in time."""
        until = time.monotonic() + seconds
        pause = _POLL_FIRST
        while self.read(on_gpu)[0]:
            if time.monotonic() > until:
                return False
            time.sleep(pause)
            # If the GPU has failed, torch logs that for each one, whenever it is asked.
            pause = min(2 * pause, _POLL_LAST)
        return True

    def _called_from_python(self, groups: Mapping[str, Any]) -> Iterator[SeenCollective]:
        """Yield operations on the main thread's stack that torch does not record, like ``recv``."""
        frame = sys._current_frames().get(threading.main_thread().ident or 0)
        if not groups or frame is None or not frame.f_code.co_filename.endswith(_IN_PYTHON):
            self._called = None
            return
        operation, given = frame.f_code.co_name, frame.f_locals
        if self._called is None or self._called[:2] != (operation, id(frame)):
            self._called = (operation, id(frame), time.monotonic())
        default = next(iter(groups))
        group = next((name for name, each in groups.items() if each is given.get("group")), default)
        ranks = _ranks(groups[group])
        peer = given.get("src" if operation == "recv" else "dst")
        backend = _backend_for(groups[group], given)
        is_between_two = operation in ("send", "recv")
        if is_between_two and isinstance(peer, int):
            ranks = sorted({sys.modules["torch.distributed"].get_rank(), peer})
        yield {
            "operation": operation,
            "number": 0 if is_between_two else _number(backend),
            "shapes": "",
            "group": _numbered(group, backend.name()),
            "ranks": ranks,
            "seconds": time.monotonic() - self._called[2],
        }


def _backend_for(group: Any, given: Mapping[str, Any]) -> Any:
    """Return what a group uses for the arguments of one of torch's functions."""
    found = dict(backends(group))
    for value in given.values():
        first = next(iter(value), None) if isinstance(value, (list, tuple)) else value
        kind = getattr(getattr(first, "device", None), "type", None)
        if kind in found:
            return found[kind]
    # A barrier has no tensors: torch takes the group's device.
    bound: Any = getattr(group.bound_device_id, "type", None)
    return found.get(bound) or next(iter(found.values()), group)


def _number(backend: Any) -> int:
    try:  # faster than `suppress`, and asked after each run
        return int(backend._get_sequence_number_for_group())
    except Exception:  # a backend that does not count them
        return 0


def _numbered(group: str, backend: str) -> str:
    """Return the name under which a group's collectives have numbers of their own."""
    return f"{group} {backend}"


def _ranks(group: Any) -> list[int]:
    world = sys.modules["torch.distributed"].distributed_c10d._world
    return sorted(world.pg_group_ranks.get(group, {}))


def _entries(recorders: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yield what recorders of torch have, the oldest first."""
    c10d = sys.modules.get("torch._C._distributed_c10d")
    # A list: Python gives up a tuple that is being made while the main thread lists all objects.
    found = [_recorded(getattr(c10d, each)) for each in recorders if hasattr(c10d, each)]
    return heapq.merge(*found, key=lambda entry: entry["time_created_ns"])


def _recorded(dump: Callable[[bool, bool, bool], bytes]) -> list[dict[str, Any]]:
    # The pickle comes from this process itself. Without stacks: resolving their names takes
    # seconds.
    with contextlib.suppress(Exception):  # private to torch: another version may lack it
        return list(pickle.loads(dump(True, False, False)).get("entries", ()))
    return []


def _shapes(entry: Mapping[str, Any]) -> str:
    sizes, types = entry["input_sizes"] or (), entry["input_dtypes"] or ()
    shown = [
        f"{_TYPES.get(kind, str(kind).lower())} {list(size)}"
        for size, kind in zip(sizes, types, strict=False)
    ]
    more = [f"{len(shown) - _MOST_SHAPES} more"] if len(shown) > _MOST_SHAPES else []
    return ", ".join([*shown[:_MOST_SHAPES], *more])
