"""What ranks use of their node: processor or GPU, memory, and the last line that each printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psutil

from jupyter_sky.formatting import last_terminal_line
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.agent_spec import RankSpec
from jupyter_sky.transport.protocol.inspection import RankUsage

_VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"
_TAIL = 4096  # bytes in which the last line is looked for


class Metrics:
    """Measures the ranks of a node.

    Parameters
    ----------
    specs
        The ranks; the environment of each says which GPU it has.
    """

    def __init__(self, specs: Iterable[RankSpec]) -> None:
        self._gpus: dict[int, str] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._total = psutil.virtual_memory().total
        self._nvml: Any = None
        self.add(specs)

    def add(self, specs: Iterable[RankSpec]) -> None:
        """Measure further ranks."""
        self._gpus.update(gpus_of(specs))

    def measure(self, ranks: Iterable[RankProcess]) -> list[RankUsage]:
        """Return what each rank uses that has a process."""
        self._load()
        return [self._usage(process) for process in ranks if process.pid]

    def _load(self) -> bool:
        if self._gpus and self._nvml is None:
            self._nvml = _load_nvml()
        return bool(self._nvml)

    def of_gpu(self, rank: int) -> tuple[float | None, list[int]] | None:
        """Return how busy the GPU of a rank is, and its memory; ``None`` where there is none.

        How busy a part of a GPU is (MIG), or one that is divided, the driver does not say.
        """
        if not self._load() or rank not in self._gpus:
            return None
        with contextlib.suppress(Exception):
            return self._of_gpu(self._gpus[rank])
        return None

    def _usage(self, process: RankProcess) -> RankUsage:
        utilisation, memory = self._utilisation_and_memory(process)
        line = last_line(process)
        return {
            "rank": process.rank,
            "line": line,
            "utilisation": utilisation,
            "memory": memory,
        }

    def _utilisation_and_memory(
        self, process: RankProcess
    ) -> tuple[float | None, list[int] | None]:
        if (on_gpu := self.of_gpu(process.rank)) is not None:
            return on_gpu
        with contextlib.suppress(psutil.Error):
            return self._of_process(process.pid or 0)
        return None, None

    def _of_gpu(self, device: str) -> tuple[float | None, list[int]]:
        handle = _handle(self._nvml, device)
        memory = _memory(self._nvml, handle)
        busy = None
        with contextlib.suppress(self._nvml.NVMLError):
            busy = self._nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
        return busy, [memory.used, memory.total]

    def _of_process(self, pid: int) -> tuple[float, list[int]]:
        # psutil measures the time since the same object was asked last.
        known = self._processes.get(pid)
        if known is None:
            known = self._processes[pid] = psutil.Process(pid)
        with known.oneshot():
            utilisation = min(1.0, known.cpu_percent() / 100)
            return utilisation, [known.memory_info().rss, self._total]


def gpus_of(specs: Iterable[RankSpec]) -> dict[int, str]:
    """Return the GPU of each rank that sees one alone, by its number or UUID on the machine."""
    visible = {spec.rank: spec.env.get(_VISIBLE_GPUS, "") for spec in specs}
    return {rank: text for rank, text in visible.items() if text and "," not in text}


def last_line(process: RankProcess) -> str:
    """Return the last line that a rank printed in its present or last run."""
    return last_terminal_line(process.run_output(_TAIL).decode(errors="replace"))


def _load_nvml() -> Any:
    """Return NVIDIA's management library; ``False`` where it cannot be used."""
    with contextlib.suppress(Exception):
        import pynvml

        pynvml.nvmlInit()
        return pynvml
    return False


def _handle(nvml: Any, device: str) -> Any:
    """Return NVML's handle of a GPU, by what ``CUDA_VISIBLE_DEVICES`` calls it."""
    if device.isdigit():
        return nvml.nvmlDeviceGetHandleByIndex(int(device))
    with contextlib.suppress(nvml.NVMLError):
        return nvml.nvmlDeviceGetHandleByUUID(device)
    # CUDA takes the beginning of a UUID as well.
    handles = map(nvml.nvmlDeviceGetHandleByIndex, range(nvml.nvmlDeviceGetCount()))
    return next(each for each in handles if nvml.nvmlDeviceGetUUID(each).startswith(device))


def _memory(nvml: Any, handle: Any) -> Any:
    """Return the memory of a GPU as ``nvidia-smi`` does: without what the driver keeps for itself.

    The first version of the call counts that as used: hundreds of megabytes of an idle GPU.
    """
    with contextlib.suppress(nvml.NVMLError, AttributeError):  # drivers before 510 have the first
        return nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    return nvml.nvmlDeviceGetMemoryInfo(handle)
