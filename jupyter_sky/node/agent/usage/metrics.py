"""Measures ranks: processor or GPU, memory, and the last line that each printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import psutil

from jupyter_sky.formatting import last_terminal_line
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.node.supervisor.supervisor import VISIBLE_GPUS
from jupyter_sky.transport.metrics.last_lines import LastLines
from jupyter_sky.transport.protocol.agent_spec import RankSpec
from jupyter_sky.transport.protocol.inspection import RankUsage

_TAIL = 64 * 1024  # bytes in which the last line is searched


@dataclass
class _Printed:
    """What a rank has printed in a run: where in its log that begins, and how far it was read."""

    run: int
    end: int
    lines: LastLines = field(default_factory=LastLines)


class UsageMeter:
    """Measures the ranks of a node.

    Parameters
    ----------
    specs
        The ranks; the environment variables of each say which GPU it has.
    """

    def __init__(self, specs: Iterable[RankSpec]) -> None:
        self._gpus: dict[int, str] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._total = psutil.virtual_memory().total
        self._nvml: Any = None
        self._printed: dict[int, _Printed] = {}
        self.add(specs)

    def add(self, specs: Iterable[RankSpec]) -> None:
        """Add ranks to measure."""
        self._gpus.update(gpus_of(specs))

    def measure(self, ranks: Iterable[RankProcess]) -> list[RankUsage]:
        """Return the usage of each rank that has a process."""
        self._load()
        return [self._usage(process) for process in ranks if process.pid]

    def _load(self) -> bool:
        if self._gpus and self._nvml is None:
            self._nvml = _load_nvml()
        return bool(self._nvml)

    def of_gpu(self, rank: int) -> tuple[float | None, tuple[int, int]] | None:
        """Return the utilisation and the memory of a rank's GPU; ``None`` if it has none.

        The driver does not report the utilisation of a part of a GPU (MIG), or of one that is
        divided.
        """
        if not self._load() or rank not in self._gpus:
            return None
        with contextlib.suppress(Exception):  # of any kind, from the driver: it is shown as unknown
            return self._of_gpu(self._gpus[rank])
        return None

    def _usage(self, process: RankProcess) -> RankUsage:
        utilisation, memory = self._utilisation_and_memory(process)
        return {
            "rank": process.rank,
            "line": self._last_line(process),
            "utilisation": utilisation,
            "memory": memory,
        }

    def _last_line(self, process: RankProcess) -> str:
        """Return the last line that a rank printed in its present or last run."""
        known, size, run = self._printed.get(process.rank), process.log.size, process.latest.offset
        if known is None or known.run != run or known.end > size:
            known = self._printed[process.rank] = _Printed(run, run)
        if known.end < size:
            start = max(known.end, size - _TAIL)
            known.lines.add(process.log.read(start, size - start))
            known.end = size
        return last_terminal_line(known.lines.text)

    def _utilisation_and_memory(
        self, process: RankProcess
    ) -> tuple[float | None, tuple[int, int] | None]:
        if (on_gpu := self.of_gpu(process.rank)) is not None:
            return on_gpu
        with contextlib.suppress(psutil.Error):
            return self._of_process(process.pid or 0)
        return None, None

    def _of_gpu(self, device: str) -> tuple[float | None, tuple[int, int]]:
        handle = _handle(self._nvml, device)
        memory = _memory(self._nvml, handle)
        busy = None
        with contextlib.suppress(self._nvml.NVMLError):
            busy = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return busy, (memory.used, memory.total)

    def _of_process(self, pid: int) -> tuple[float, tuple[int, int]]:
        # psutil measures since the last call on the same object.
        known = self._processes.get(pid)
        if known is None:
            known = self._processes[pid] = psutil.Process(pid)
        with known.oneshot():
            utilisation = min(1.0, known.cpu_percent() / 100)
            return utilisation, (known.memory_info().rss, self._total)


def gpus_of(specs: Iterable[RankSpec]) -> dict[int, str]:
    """Return the GPU, as number or UUID on the machine, of each rank that sees exactly one."""
    visible = {spec.rank: spec.env.get(VISIBLE_GPUS, "") for spec in specs}
    return {rank: text for rank, text in visible.items() if text and "," not in text}


def _load_nvml() -> Any:
    """Return NVIDIA's management library; ``False`` if it cannot be used."""
    with contextlib.suppress(Exception):  # no driver, no package for it, or another version
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return False


def _handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of a GPU, given its name in ``CUDA_VISIBLE_DEVICES``."""
    if device.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    with contextlib.suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetHandleByUUID(device)
    # CUDA also accepts the beginning of a UUID.
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return next(each for each in handles if nvml.nvmlDeviceGetUUID(each).startswith(device))


def _memory(nvml: Any, handle: Any) -> Any:
    """Return the memory of a GPU as ``nvidia-smi`` does, without the driver's reserve.

    The first version of the call counts the reserve as used: hundreds of megabytes on an idle GPU.
    """
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # drivers before 510 have the first
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return nvml.nvmlDeviceGetMemoryInfo(handle)
