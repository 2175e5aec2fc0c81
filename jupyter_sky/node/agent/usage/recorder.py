"""Samples the resource usage of the machine and its ranks every few seconds.

The agent keeps the samples, so that a notebook that connects later gets those of the last minutes.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Mapping

import psutil

from jupyter_sky.node.agent.usage.metrics import UsageMeter
from jupyter_sky.node.clock import steady_time
from jupyter_sky.node.supervisor.rank_process import RankProcess
from jupyter_sky.transport.metrics.usage_history import RankSample, Sample, Samples, Sizes

_Times = tuple[int, float]  # a process, and the processor seconds that it has used


class UsageRecorder:
    """Records the resource usage of the machine and its ranks.

    Parameters
    ----------
    metrics
        Measures the GPUs of the ranks.

    Attributes
    ----------
    samples
        The recorded samples.
    """

    def __init__(self, metrics: UsageMeter) -> None:
        self.samples = Samples()
        self._metrics = metrics
        self._processors = psutil.cpu_count() or 1
        self._since = time.monotonic()
        self._machine = psutil.cpu_times()
        self._traffic = _traffic()
        self._ranks: dict[int, _Times] = {}

    def sample(self, ranks: Iterable[RankProcess]) -> None:
        """Record the present usage, or that since the previous sample."""
        now = time.monotonic()
        seconds, self._since = max(now - self._since, 1e-3), now
        totals: dict[int, int] = {}
        taken = {each.rank: self._of_rank(each, seconds, totals) for each in ranks if each.pid}
        memory = psutil.virtual_memory()
        self.samples.sizes = Sizes(self._processors, memory.total, totals)
        self.samples.add(
            Sample(
                # Not by a clock that may be set meanwhile: the curves of other machines go with it.
                max(int(1000 * steady_time()), self.samples.last + 1),
                self._busy_processors(),
                memory.total - memory.available,
                self._network(seconds),
                taken,
            )
        )

    def _of_rank(self, process: RankProcess, seconds: float, totals: dict[int, int]) -> RankSample:
        processor = memory = gpu = gpu_memory = None
        with contextlib.suppress(psutil.Error):
            looked = psutil.Process(process.pid)
            with looked.oneshot():
                times = looked.cpu_times()
                memory = looked.memory_info().rss
            pid, before = self._ranks.get(process.rank, (0, 0.0))
            used = times.user + times.system
            self._ranks[process.rank] = (looked.pid, used)
            if pid == looked.pid:
                processor = max(0.0, used - before) / seconds
        if (on_gpu := self._metrics.of_gpu(process.rank)) is not None:
            gpu, [gpu_memory, totals[process.rank]] = on_gpu
        return RankSample(processor, memory, gpu, gpu_memory)

    def _busy_processors(self) -> float | None:
        before, now = self._machine, psutil.cpu_times()
        self._machine = now
        whole, idle = _sum(now) - _sum(before), _idle(now) - _idle(before)
        if whole <= 0:
            return None
        return self._processors * min(1.0, max(0.0, 1 - idle / whole))

    def _network(self, seconds: float) -> float | None:
        before, self._traffic = self._traffic, _traffic()
        passed = [count - before[name] for name, count in self._traffic.items() if name in before]
        return max(0, sum(passed)) / seconds if passed else None


def _sum(times: object) -> float:
    # The time of guests is included in user time already.
    fields = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal")
    return float(sum(getattr(times, name, 0.0) for name in fields))


def _idle(times: object) -> float:
    return float(getattr(times, "idle", 0.0) + getattr(times, "iowait", 0.0))


def _traffic() -> Mapping[str, int]:
    """Return the bytes received and sent on each interface except loopback."""
    with contextlib.suppress(OSError):
        counters = psutil.net_io_counters(pernic=True)
        return {
            name: each.bytes_recv + each.bytes_sent
            for name, each in counters.items()
            if name not in ("lo", "lo0")
        }
    return {}
