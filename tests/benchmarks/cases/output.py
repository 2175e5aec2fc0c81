"""What ranks print: how soon it is in the cell, and what a flood of it does."""

from __future__ import annotations

import os
import statistics
from pathlib import Path

from tests.benchmarks.measure import Row, Target, percentile
from tests.benchmarks.notebook import SkyNotebook

_LINES = 200
_FLOOD = 1_000_000

_STAMPS = f"""%%sky --nodes 4
import time

# The clock is one for all processes of a machine.
for _ in range({_LINES}):
    print(time.monotonic())
    time.sleep(0.005)
"""

_COUNT = f"""%%sky
for number in range({_FLOOD}):
    print(number)
"""

# Its greatest extent so far is forgotten first, so that what is read afterwards is the flood's.
_MEMORY = """
from pathlib import Path

def _memory(line):
    status = Path("/proc/self/status").read_text()
    return next(int(text.split()[1]) for text in status.splitlines() if text.startswith(line))

Path("/proc/self/clear_refs").write_text("5")
_before = _memory("VmRSS")
"""
_GROWN = "(_memory('VmHWM') - _before) / 1024"


def lines(peers: bool) -> list[Row]:
    """From ``print`` on the head to the message that the page shows."""
    with SkyNotebook() as notebook:
        cell = notebook.run(_STAMPS)
    delays = [
        arrived - float(line)
        for arrived, text in cell.arrivals
        for line in text.split()
        if line.replace(".", "").isdigit()
    ]
    assert len(delays) == _LINES, f"{len(delays)} of {_LINES} lines arrived"
    return [
        Row(
            "a printed line reaches the cell, 95th percentile",
            1000 * percentile(delays, 95),
            "ms",
            Target(50),
            note=f"median {1000 * statistics.median(delays):.2f} ms, "
            f"longest {1000 * max(delays):.1f} ms of {_LINES}",
        )
    ]


def flood(peers: bool) -> list[Row]:
    """A million lines: time, memory, messages to the page, and whether the log has them all."""
    with SkyNotebook() as notebook:
        notebook.run("%%sky --nodes 4\npass")
        notebook.run(_MEMORY)
        cell = notebook.run(_COUNT)
        taken = cell.ended - cell.started
        grown = float(notebook.value(_GROWN))
        logged = _head_log().read_text()
    expected = "".join(f"{number}\n" for number in range(_FLOOD))
    whole = "complete" if expected in logged else "NOT complete"
    shown = len(cell.text)
    return [
        Row(
            "a million printed lines",
            taken,
            "s",
            note=f"log {whole}; {len(cell.arrivals)} messages with {shown / 1e6:.1f} of "
            f"{len(expected) / 1e6:.1f} MB to the page",
        ),
        Row("… growth of the kernel", grown, "MB", Target(50)),
    ]


def _head_log() -> Path:
    (log,) = Path(os.environ["JUPYTER_SKY_HOME"]).glob("run/*/logs/rank0.log")
    return log
