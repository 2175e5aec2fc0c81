"""A notebook that is used for weeks: whether anything grows with what has happened before.

Cells, pushes, restarts and attachments are each done many times, and all along it is measured what
kernel, agent, fork server and ranks have. A curve is flat if its last quarter is not above its
first.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.node.blobs.store import default_limit
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.node_defaults import SHARED_MEMORY
from jupyter_sky.providers.spec import ClusterSpec
from tests.benchmarks.measure import Row, Target, number
from tests.benchmarks.notebook import Notebook, SkyNotebook
from tests.node_processes import fork_server_of

_NAME = "long-life"
_SAMPLES = 40
_WARM = 200  # of each thing before the first sample: caches fill up
_RECORDED = 2_000  # collectives of which torch's flight recorder keeps what called them
_BARS = "▁▂▃▄▅▆▇█"

_START = f"%%sky --nodes 2 --cluster {_NAME}\nimport torch, torch.distributed as dist"

# What users do again and again: print, take something back, use the group, display, fail.
_CELLS = (
    "%%sky --stdout all\nprint('step', {n})\ntotal = {n} + 1",
    "%%sky --out total\ntotal = {n} * 2\ntotal",
    "%%sky --gather parts\nparts = dist.get_rank() + {n}",
    "%%sky\nones = torch.ones(1)\ndist.all_reduce(ones)\nones + {n}",
    "%%sky\nfrom IPython.display import HTML, display\ndisplay(HTML('<b>{n}</b>'))",
)
# As much that IPython keeps: the text of the cell, and what it has printed and displayed.
_PLAIN = (
    "print('[0] step', {n})\nprint('[1] step', {n})",
    "print({n})",
    "parts = [{n}, {n}]",
    "print('tensor([{n}.])')",
    "from IPython.display import HTML, display\ndisplay(HTML('<b>{n}</b>'))",
)
_COLLECTIVE = _CELLS[3]
_FAILS = "%%sky\nraise ValueError({n})"


@dataclass(frozen=True)
class Limit:
    """How much a figure may grow from the first quarter of a phase to the last, in its unit."""

    unit: str
    growth: float


def _cache() -> float:
    """Return how much of what was sent agents keep in case that it is needed again, in MB."""
    return default_limit(SHARED_MEMORY) / 1e6


# A node keeps two thousand runs for each log.
LIMITS = {
    "memory of the kernel": Limit("MB", 4.0),
    "memory of the agent": Limit("MB", 2.0),
    "memory of the fork server": Limit("MB", 1.0),
    "memory of the ranks": Limit("MB", 4.0),
    "threads": Limit("", 2.0),
    "descriptors": Limit("", 3.0),
    "journal and logs": Limit("MB", 8.0),
    "shared memory": Limit("MB", _cache()),
}


@dataclass(frozen=True)
class Counts:
    """How often each thing is done."""

    cells: int = 10_000
    pushes: int = 1_000
    restarts: int = 200
    attachments: int = 100


Sample = dict[str, float]
"""A figure of each kind, at one moment."""


def long_life(peers: bool) -> list[Row]:
    """10,000 cells, 1,000 pushes of changing data, 200 restarts, 100 attachments."""
    return measure(Counts())


def measure(counts: Counts) -> list[Row]:
    """Do each thing so often, and return what has grown."""
    plain = _plain_cells(counts.cells)
    rows = []
    with SkyNotebook() as notebook:
        notebook.run(_START)
        process = _process_of(notebook)
        for turn in range(min(_RECORDED, counts.cells)):
            notebook.run(_COLLECTIVE.format(n=turn % 100))
        for what, times, act in (
            ("cells", counts.cells, _cell),
            ("pushes", counts.pushes, _push),
            ("restarts", counts.restarts, _restart),
            ("attachments", counts.attachments, _attach),
        ):
            curve = _curve(times, lambda turn, act=act: act(notebook, turn), lambda: _now(process))
            rows += _rows(f"{times:,} {what}", curve, plain if what == "cells" else None)
    return rows


def growth(values: Sequence[float]) -> float:
    """Return by how much the last quarter of a curve is above its first."""
    quarter = max(1, len(values) // 4)
    return statistics.median(values[-quarter:]) - statistics.median(values[:quarter])


def _rows(what: str, curve: Sequence[Sample], plain: Sequence[float] | None) -> Iterator[Row]:
    for kind, limit in LIMITS.items():
        values = [sample[kind] for sample in curve]
        note = f"{_drawn(values)} from {number(values[0])} to {number(values[-1])} {limit.unit}"
        grown = growth(values)
        if plain and kind == "memory of the kernel":
            # IPython keeps the text of each cell, and what it has shown.
            note += f"; as many cells without a cluster: {growth(plain):.1f} MB, taken off here"
            grown -= growth(plain)
        yield Row(f"{what}: {kind}, growth", grown, limit.unit, Target(limit.growth), note=note)


def _drawn(values: Sequence[float]) -> str:
    """Return a curve as a line of bars."""
    low, high = min(values), max(values)
    steps = len(_BARS) - 1
    return "".join(
        _BARS[round(steps * (v - low) / (high - low)) if high > low else 0] for v in values
    )


# What is measured


def _now(kernel: psutil.Process) -> Sample:
    """Return what there is of a cluster, and of the kernel that uses it."""
    row = registry.find(_NAME)
    assert row is not None
    [machine] = row.machines
    agent = psutil.Process(machine["pid"])
    fork_server = fork_server_of(agent)
    ranks = fork_server.children()
    everyone = [kernel, agent, fork_server, *ranks]
    return {
        "memory of the kernel": _memory(kernel),
        "memory of the agent": _memory(agent),
        "memory of the fork server": _memory(fork_server),
        "memory of the ranks": sum(map(_memory, ranks)),
        "threads": sum(each.num_threads() for each in everyone),
        "descriptors": sum(each.num_fds() for each in everyone),
        "journal and logs": _size(Path(machine["folder"])),
        "shared memory": _size(Path(machine["blobs"])),
    }


def _memory(process: psutil.Process) -> float:
    """Return what a process has in memory, in MB; a page that it shares is there as well."""
    return float(process.memory_info().rss) / 1e6


def _size(folder: Path) -> float:
    """Return what the files of a folder take on the disk, in MB."""
    blocks = 0
    for path in folder.rglob("*"):
        try:
            blocks += path.stat().st_blocks
        except FileNotFoundError:  # it was temporary
            continue
    return blocks * 512 / 1e6


def _curve(times: int, act: Callable[[int], object], now: Callable[[], Sample]) -> list[Sample]:
    """Do something so often, and return samples taken all along."""
    for turn in range(min(_WARM, times // 4)):
        act(turn)
    samples = [now()]
    for turn in range(times):
        act(turn)
        if (turn + 1) * _SAMPLES // times > turn * _SAMPLES // times:
            samples.append(now())
    return samples


def _plain_cells(times: int) -> list[float]:
    """Return the curve of a kernel's memory in which as many cells run without a cluster."""
    with Notebook() as notebook:
        kernel = _process_of(notebook)
        curve = _curve(
            times,
            lambda turn: notebook.run(_plain(turn)),
            lambda: {"memory": _memory(kernel)},
        )
        return [each["memory"] for each in curve]


def _plain(turn: int) -> str:
    """Return a cell that is as long as one of a cluster, and shows as much."""
    cell, kind = _CELLS[turn % len(_CELLS)], _PLAIN[turn % len(_PLAIN)]
    return f"# {cell!r}\n" + kind.format(n=turn % 100)


def _process_of(notebook: Notebook) -> psutil.Process:
    return psutil.Process(int(notebook.value("__import__('os').getpid()")))


# What is done


def _cell(notebook: SkyNotebook, turn: int) -> None:
    # A notebook's cells are run again and again: a hundred of them are different.
    if turn % 50 == 49:
        notebook.run(_FAILS.format(n=turn % 100), fails=True)
    else:
        notebook.run(_CELLS[turn % len(_CELLS)].format(n=turn % 100))


def _push(notebook: SkyNotebook, turn: int) -> None:
    notebook.run(f"import os\ndata = os.urandom(300_000 + {turn % 10})\n%sky push data")


def _restart(notebook: SkyNotebook, turn: int) -> None:
    notebook.run(f"%sky restart {turn % 2}")


def _attach(notebook: SkyNotebook, turn: int) -> None:
    """Attach to the cluster from here, as another kernel does, and leave it."""
    row = registry.find(_NAME)
    assert row is not None
    _, runtime_env = assemble(ClusterSpec(name=_NAME), [])
    cluster = Cluster.attach(row, Local(), runtime_env)
    assert cluster is not None
    cluster.close()
