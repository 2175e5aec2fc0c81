"""Many nodes: real agents and links, and ranks that only answer; see `tests.benchmarks.light`.

What takes time on the nodes is not shown by that: all agents share the processors of this machine.
"""

from __future__ import annotations

import json
import tempfile
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import psutil

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import kernel_files
from jupyter_sky.cluster.inventory.kernel_files import ClusterReport, KernelFile
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.notebook.panel.strip import record_bundle
from jupyter_sky.providers.spec import ClusterSpec
from tests.benchmarks.light.provider import Light
from tests.benchmarks.measure import Point, Row, Target
from tests.cluster.cells import Cells

SIZES = (16, 64, 256, 1000)
"""Nodes, with a rank each; `_NODES_OF_EIGHT` are measured as well."""

_NODES_OF_EIGHT = 32
_ROUNDS, _RUNS = 5, 4
_LINES = 100
_BLOB = 4_000_000

_CPU = Target(15.0)  # µs a rank, at 256 ranks
_MEMORY = Target(50.0)  # kB a rank


@dataclass(frozen=True)
class _Sample:
    """What a cluster of so many nodes costs the notebook; times of a run are the best of some."""

    start: float
    memory: float
    threads: int
    wall: float
    cpu: float
    lines: float
    strip: float
    sidebar: float
    push: float


def scale(peers: bool) -> list[Row]:
    """What a run costs the kernel, against the number of nodes."""
    _measure(2, 1)  # so that no figure has what is imported
    samples = {(nodes, 1): _measure(nodes, 1) for nodes in SIZES}
    samples[_NODES_OF_EIGHT, 8] = _measure(_NODES_OF_EIGHT, 8)
    return [row for (nodes, each), sample in samples.items() for row in _rows(nodes, each, sample)]


def _rows(nodes: int, each: int, sample: _Sample) -> list[Row]:
    ranks = nodes * each
    where = f"{nodes} light nodes" + (f" of {each} ranks" if each > 1 else "")
    is_goal = ranks == 256

    def at(curve: str) -> Point | None:
        return Point(f"{curve}, by nodes", nodes) if each == 1 else None

    return [
        Row(
            f"{where}: the kernel's processor time for an empty cell, a rank",
            1e6 * sample.cpu / ranks,
            "µs",
            _CPU if is_goal else None,
            note=f"{1000 * sample.cpu:.1f} ms in all; the cell takes {1000 * sample.wall:.1f} ms",
            point=at("the kernel's time for a cell, a rank"),
        ),
        Row(
            f"{where}: memory of the kernel, a rank",
            max(0.0, sample.memory) / ranks / 1000,  # what was free before may be given back
            "kB",
            _MEMORY if is_goal else None,
            note=f"{sample.threads} threads",
            point=at("memory of the kernel, a rank"),
        ),
        Row(
            f"{where}: start, with agents that have nothing to import",
            sample.start,
            "s",
            point=at("start of light nodes"),
        ),
        Row(
            f"{where}: {_LINES} lines of every rank",
            sample.lines,
            "s",
            point=at(f"{_LINES} lines of every rank"),
        ),
        Row(
            f"{where}: {_BLOB / 1e6:.0f} MB to all nodes",
            sample.push,
            "s",
            point=at("a pushed array"),
        ),
        Row(
            f"{where}: processor time of the strip of a cell, as its page gets it",
            1000 * sample.strip,
            "ms",
            point=at("the strip of a cell"),
        ),
        Row(
            f"{where}: processor time of the file for the sidebar",
            1000 * sample.sidebar,
            "ms",
            point=at("the file for the sidebar"),
        ),
    ]


def _measure(nodes: int, each: int) -> _Sample:
    process = psutil.Process()
    before = process.memory_info().rss
    began = time.monotonic()
    with _cluster(nodes, each) as cells:
        start = time.monotonic() - began
        memory = process.memory_info().rss - before
        cells.run("0")
        cpu, wall = min(_run(cells) for _ in range(_ROUNDS))
        began = time.monotonic()
        cells.run(str(_LINES), show=cells.cluster.all_ranks)
        lines = time.monotonic() - began
        strip = min(_cpu(lambda: _show_strip(cells.cluster)) for _ in range(_ROUNDS))
        sidebar = min(_cpu(lambda: _write_for_sidebar(cells.cluster)) for _ in range(_ROUNDS))
        cells.namespace["blob"] = np.random.default_rng(0).integers(0, 255, _BLOB, np.uint8)
        began = time.monotonic()
        cells.run("0", names=["blob"])
        push = time.monotonic() - began
        threads = threading.active_count()
    return _Sample(start, memory, threads, wall, cpu, lines, strip, sidebar, push)


def _cpu(function: Callable[[], object]) -> float:
    """Return the processor time that a call takes."""
    began = time.thread_time()
    function()
    return time.thread_time() - began


def _show_strip(cluster: Cluster) -> None:
    json.dumps(record_bundle(cluster.snapshot(), is_open=False))


def _write_for_sidebar(cluster: Cluster) -> None:
    report = ClusterReport(cluster.id, dict(cluster.snapshot()), None)
    with tempfile.TemporaryDirectory() as folder:
        file = KernelFile("scale", "scale.ipynb", time.time(), (report,))
        kernel_files.write(Path(folder), file)


def _run(cells: Cells) -> tuple[float, float]:
    """Return the kernel's processor time for a run, and its duration."""
    cpu, wall = time.process_time(), time.monotonic()
    for _ in range(_RUNS):
        cells.run("0")
    return (time.process_time() - cpu) / _RUNS, (time.monotonic() - wall) / _RUNS


@contextmanager
def _cluster(nodes: int, each: int) -> Iterator[Cells]:
    spec = ClusterSpec(name=f"light-{uuid.uuid4().hex[:6]}", nodes=nodes, procs_per_node=each)
    made, env = assemble(spec, [])
    cluster = Cluster.start(made, Light(), env, timeouts=Timeouts(stop=20))
    try:
        yield Cells(cluster)
    finally:
        cluster.down()
