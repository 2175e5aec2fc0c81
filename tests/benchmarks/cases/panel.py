"""What the view of a run costs: bytes to the page, and time of the kernel."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any, ClassVar

import comm
from comm.base_comm import BaseComm

from jupyter_sky.cluster.runs.monitor import Monitor
from jupyter_sky.cluster.runs.run import Run
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.state import ClusterState, running
from jupyter_sky.node.agent.server import REPORT_EVERY
from jupyter_sky.providers.base import Node
from tests.benchmarks.measure import Row, Target
from tests.benchmarks.notebook import Cell, SkyNotebook

_SECONDS = 5
_BYTES = Target(20)  # kB a second
_TIME = Target(2)  # percent of a core

_BUSY = f"""%%sky --stdout none
until = time.monotonic() + {_SECONDS}
while time.monotonic() < until:
    print("step", time.monotonic())
    time.sleep(0.05)
"""


def panel(peers: bool) -> list[Row]:
    """Ranks that print twenty lines a second each: with the strip, and without."""
    return [*_real(1, 4), *_real(16, 4), *_simulated(64, 4)]


def _real(nodes: int, ranks: int) -> list[Row]:
    """A notebook whose ranks are processes of this machine."""
    cell, with_panel = _measured(nodes, ranks, panel=True)
    _, without = _measured(nodes, ranks, panel=False)
    sizes = [len(json.dumps(content)) for _, content in cell.updates]
    seconds = cell.ended - cell.started
    return [
        Row(
            f"the view of {nodes * ranks} busy ranks: to the page",
            sum(sizes) / seconds / 1000,
            "kB/s",
            _BYTES,
            note=f"{len(sizes) / seconds:.1f} updates a second",
        ),
        Row(
            "… time of the kernel",
            100 * (with_panel - without) / seconds,
            "%",
            _TIME,
            note=f"of a core, beside {100 * without / seconds:.1f} % without the view",
        ),
    ]


def _measured(nodes: int, ranks: int, panel: bool) -> tuple[Cell, float]:
    """Return the cell that ran, and the seconds of processor time that the kernel took for it."""
    with SkyNotebook() as notebook:
        notebook.run(f"%config Sky.panel = {panel}\nimport time")
        start = f"%%sky --nodes {nodes} --procs-per-node {ranks} --plugin none\nimport time"
        notebook.run(start)
        before = float(notebook.value("time.process_time()"))
        cell = notebook.run(_BUSY)
        return cell, float(notebook.value("time.process_time()")) - before


class _Wire(BaseComm):
    """What leads to a page: it counts what is sent."""

    sizes: ClassVar[list[int]] = []

    def publish_msg(self, msg_type: str, data: Any = None, **rest: Any) -> None:
        if msg_type == "comm_msg":
            self.sizes.append(len(json.dumps(data)))


def _simulated(nodes: int, ranks: int) -> list[Row]:
    """A panel that hears of ranks which are only reported: so many processes have no room here."""
    from jupyter_sky.notebook.panel.widget import Panel

    cluster = _Reported(nodes, ranks)
    create, comm.create_comm = comm.create_comm, _Wire
    try:
        panel = Panel(cluster)
        _Wire.sizes.clear()
        before, until, step = time.process_time(), time.monotonic() + _SECONDS, 0
        while time.monotonic() < until:
            # The nodes report one after another.
            cluster.report(step % nodes, step)
            panel.update()
            step += 1
            time.sleep(REPORT_EVERY / nodes)
        used = time.process_time() - before
    finally:
        comm.create_comm = create
    note = "ranks are simulated at the level of reports"
    return [
        Row(
            f"the view of {nodes * ranks} busy ranks: to the page",
            sum(_Wire.sizes) / _SECONDS / 1000,
            "kB/s",
            _BYTES,
            note=note,
        ),
        Row("… time of the kernel", 100 * used / _SECONDS, "%", _TIME, note=note),
    ]


class _Reported:
    """A cluster that reports are made up for, as the source of a panel."""

    def __init__(self, nodes: int, ranks: int) -> None:
        self._nodes = [
            Node(
                number,
                "127.0.0.1",
                f"host{number}",
                tuple(range(number * ranks, (number + 1) * ranks)),
            )
            for number in range(nodes)
        ]
        everyone = tuple(range(nodes * ranks))
        run = Run(Task(everyone, code="", show=()), host_of=str, on_finish=lambda run: None)
        state = running(ClusterState.new(self._nodes), everyone, run.id)
        self._reports: dict[int, dict[str, Any]] = {}
        controller: Any = SimpleNamespace(
            id="simulated", spec=SimpleNamespace(name="simulated"),
            provider=SimpleNamespace(name="local"), state=state, ranks=everyone, note="",
            price=None, cost=None, sent_bytes=0, reports=self._reports,
            node=lambda rank: self._nodes[rank // ranks], forget_lines=lambda ranks: None,
        )  # fmt: skip
        self._monitor = Monitor(controller)
        self._monitor.begin(run)

    def report(self, node: int, step: int) -> None:
        """Say what the ranks of a node use now."""
        for rank in self._nodes[node].ranks:
            self._reports[rank] = {
                "rank": rank,
                "line": f"step {step / 7}",
                "utilisation": (step * 37 + rank) % 100 / 100,
                "memory": [10**9 + step * 10**6, 16 * 10**9],
            }

    def snapshot(self, rank: int | None) -> Any:
        """Return what is shown."""
        return self._monitor.snapshot()

    def stop(self) -> None:
        """Nothing runs."""

    def listen(self, listener: Any) -> None:
        """The benchmark says itself when there is something new."""
