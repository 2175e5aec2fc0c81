"""What a panel of many ranks costs: messages to the page, and time of the kernel."""

from __future__ import annotations

import json

from tests.benchmarks.measure import Row, Target
from tests.benchmarks.notebook import Cell, SkyNotebook

_SECONDS = 5

_START = "%%sky --nodes 16 --procs-per-node 4 --plugin none\nimport time"

_BUSY = f"""%%sky --stdout none
until = time.monotonic() + {_SECONDS}
while time.monotonic() < until:
    print("step", time.monotonic())
    time.sleep(0.05)
"""


def panel(peers: bool) -> list[Row]:
    """64 ranks that print twenty lines a second each: with the panel, and without."""
    cell, with_panel = _measured(panel=True)
    _, without = _measured(panel=False)
    sizes = [len(json.dumps(content)) for _, content in cell.updates]
    seconds = cell.ended - cell.started
    return [
        Row(
            "the panel of 64 busy ranks: updates a second",
            len(sizes) / seconds,
            "",
            Target(10),
            note=f"{sum(sizes) / max(1, len(sizes)) / 1000:.1f} kB each",
        ),
        Row(
            "… time of the kernel",
            100 * with_panel / seconds,
            "%",
            note=f"{100 * without / seconds:.1f} % without panel",
        ),
    ]


def _measured(panel: bool) -> tuple[Cell, float]:
    """Return the cell that ran, and the seconds of processor time that the kernel took for it."""
    with SkyNotebook() as notebook:
        notebook.run(f"%config Sky.panel = {panel}\nimport time")
        notebook.run(_START)
        before = float(notebook.value("time.process_time()"))
        cell = notebook.run(_BUSY)
        return cell, float(notebook.value("time.process_time()")) - before
