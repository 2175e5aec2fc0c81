"""Measures a rank's memory during a cell: that of its process, and torch's on GPUs."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.transport.protocol.profiling import DeviceMemory, MemoryRecord

_RESET_PEAK = "5"  # Linux's command to reset the peak


def begin() -> Callable[[], MemoryRecord]:
    """Begin to measure; return a function that ends it and returns the result."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text(_RESET_PEAK)
    cuda = _cuda()
    for device in range(cuda.device_count() if cuda else 0):
        with contextlib.suppress(Exception):  # errors of CUDA are for the cell to report
            cuda.reset_peak_memory_stats(device)
    return _end


def _end() -> MemoryRecord:
    machine = psutil.virtual_memory()
    process = psutil.Process().memory_info().rss
    devices, why = _devices()
    return {
        "process": process,
        "peak": max(process, _peak()),
        "available": machine.available,
        "total": machine.total,
        "devices": devices,
        "why_no_gpu": why,
    }


def _peak() -> int:
    """Return the peak memory of the process since `begin`."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0


def _cuda() -> Any:
    """Return `torch.cuda` if cells have used it; asking more would initialise it."""
    torch = sys.modules.get("torch")
    return torch.cuda if torch is not None and torch.cuda.is_initialized() else None


def _devices() -> tuple[list[DeviceMemory], str]:
    torch = sys.modules.get("torch")
    if torch is None:
        return [], "torch is not imported"
    if not torch.cuda.is_available():
        return [], "torch finds no GPU"
    cuda = _cuda()
    if cuda is None:
        return [], "torch has not used the GPU"
    found: list[DeviceMemory] = []
    for device in range(cuda.device_count()):
        stats = cuda.memory_stats(device)
        free, total = cuda.mem_get_info(device)
        found.append(
            {
                "device": device,
                "name": str(cuda.get_device_name(device)),
                "allocated": stats.get("allocated_bytes.all.current", 0),
                "reserved": stats.get("reserved_bytes.all.current", 0),
                "peak_allocated": stats.get("allocated_bytes.all.peak", 0),
                "peak_reserved": stats.get("reserved_bytes.all.peak", 0),
                "used": total - free,
                "total": total,
            }
        )
    used = [each for each in found if each["peak_reserved"]]
    return used, "" if used else "torch has no memory on the GPU"
