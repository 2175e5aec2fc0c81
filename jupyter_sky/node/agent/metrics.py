"""What ranks use of their node: processor or GPU, memory, and the last line that each printed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from typing import Any

import psutil

from jupyter_sky.node.supervisor.rank_process import RankProcess

_LONGEST_LINE = 300
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


class Metrics:
    """Measures the ranks of a node.

    Parameters
    ----------
    devices
        The GPU of each rank, by its number on the machine; ranks without one are left out.
    """

    def __init__(self, devices: dict[int, int]) -> None:
        self._devices = devices
        self._processes: dict[int, psutil.Process] = {}
        self._total = psutil.virtual_memory().total
        self._nvml: Any = _nvml() if devices else None

    def measure(self, ranks: Iterable[RankProcess]) -> list[dict[str, Any]]:
        """Return ``rank``, ``line``, ``utilisation`` (0 to 1) and ``memory`` (used, total bytes).

        Of a rank with a GPU, utilisation and memory are those of the GPU.
        """
        return [
            {"rank": process.rank, "line": last_line(process), **self._use(process)}
            for process in ranks
            if process.pid
        ]

    def _use(self, process: RankProcess) -> dict[str, Any]:
        with contextlib.suppress(Exception):
            if self._nvml and process.rank in self._devices:
                return self._gpu(self._devices[process.rank])
        with contextlib.suppress(psutil.Error):
            return self._processor(process.pid or 0)
        return {"utilisation": None, "memory": None}

    def _gpu(self, device: int) -> dict[str, Any]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(device)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        return {"utilisation": rates.gpu / 100, "memory": [memory.used, memory.total]}

    def _processor(self, pid: int) -> dict[str, Any]:
        # A process object remembers when it was asked last: what it returns is the use since then.
        known = self._processes.get(pid)
        if known is None:
            known = self._processes[pid] = psutil.Process(pid)
        with known.oneshot():
            utilisation = min(1.0, known.cpu_percent() / 100)
            return {"utilisation": utilisation, "memory": [known.memory_info().rss, self._total]}


def last_line(process: RankProcess) -> str:
    """Return the last line that a rank printed, as a terminal would show it."""
    text = process.log.tail(2, limit=4096).decode(errors="replace")
    lines = [line.rsplit("\r", 1)[-1] for line in text.replace("\r\n", "\n").split("\n")]
    last = next((line for line in reversed(lines) if line.strip()), "")
    return _CONTROL.sub("", last)[:_LONGEST_LINE]


def _nvml() -> Any:
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return None
