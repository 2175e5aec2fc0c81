"""What ranks use of their node: processor or GPU, memory, and the last line that each printed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Any

import psutil

from jupyter_sky.formatting import last_terminal_line
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.protocol.agent_spec import RankSpec
from jupyter_sky.transport.protocol.messages import RankUsage

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
        self._gpus: dict[int, int] = {}
        self._processes: dict[int, psutil.Process] = {}
        self._total = psutil.virtual_memory().total
        self._nvml: Any = None
        self.add(specs)

    def add(self, specs: Iterable[RankSpec]) -> None:
        """Measure further ranks."""
        self._gpus.update(gpus_of(specs))

    def measure(self, ranks: Iterable[RankProcess]) -> list[RankUsage]:
        """Return what each rank uses that has a process."""
        if self._gpus and self._nvml is None:
            self._nvml = _load_nvml()
        return [self._usage(process) for process in ranks if process.pid]

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
        with contextlib.suppress(Exception):
            if self._nvml and process.rank in self._gpus:
                return self._of_gpu(self._gpus[process.rank])
        with contextlib.suppress(psutil.Error):
            return self._of_process(process.pid or 0)
        return None, None

    def _of_gpu(self, device: int) -> tuple[float, list[int]]:
        handle = self._nvml.nvmlDeviceGetHandleByIndex(device)
        memory = self._nvml.nvmlDeviceGetMemoryInfo(handle)
        rates = self._nvml.nvmlDeviceGetUtilizationRates(handle)
        return rates.gpu / 100, [memory.used, memory.total]

    def _of_process(self, pid: int) -> tuple[float, list[int]]:
        # psutil measures the time since the same object was asked last.
        known = self._processes.get(pid)
        if known is None:
            known = self._processes[pid] = psutil.Process(pid)
        with known.oneshot():
            utilisation = min(1.0, known.cpu_percent() / 100)
            return utilisation, [known.memory_info().rss, self._total]


def gpus_of(specs: Iterable[RankSpec]) -> dict[int, int]:
    """Return the GPU of each rank that has one to itself, by its number on the machine."""
    visible = {spec.rank: spec.env.get(_VISIBLE_GPUS, "") for spec in specs}
    return {rank: int(text) for rank, text in visible.items() if text.isdigit()}


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
