"""How soon the user can go on: after a rank was killed, and after Stop."""

from __future__ import annotations

import os
import signal
import statistics
import time

from tests.benchmarks.measure import Row, Target, spread
from tests.benchmarks.notebook import Cell, SkyNotebook

_ROUNDS = 3
_VICTIM = 2

_PIDS = """%%sky --nodes 4 --gather pids
import hashlib
import os
import time

import torch
import torch.distributed as dist

pids = os.getpid()
"""

# Rank 3 does not come, so the others stay in the collective.
_COLLECTIVE = """%%sky --stdout all
if dist.get_rank() == 3:
    time.sleep(600)
print("inside\\n", end="", flush=True)
dist.barrier()
"""

_PROOF = """%%sky --out total
import torch
import torch.distributed as dist

ones = torch.ones(1)
dist.all_reduce(ones)
total = ones.item()
"""

_BUSY = {
    "in a Python loop": "while True:\n    pass",
    "in time.sleep": "time.sleep(600)",
    "in a C call": "hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)",
}


def killed(peers: bool) -> list[Row]:
    """``kill -9`` of a rank in a collective: the error, and the next cell."""
    errors, cells = [], []
    with SkyNotebook() as notebook:
        for _ in range(_ROUNDS):
            notebook.run(_PIDS)
            pid = notebook.value("pids")[_VICTIM]
            act = _Once(3, lambda pid=pid: os.kill(pid, signal.SIGKILL))
            cell = notebook.run(_COLLECTIVE, on_text=act, fails=True)
            _check(cell, f"rank {_VICTIM}")
            errors.append(cell.ended - act.at)
            cells.append(_next_cell(notebook) - act.at)
    return [
        Row(
            "kill -9 of a rank in a collective: the error names it",
            statistics.median(errors),
            "s",
            Target(1),
            note=f"{spread(errors)}; {cell.error[0]}: {cell.error[1].partition('. ')[0]}",
        ),
        Row("… until the next cell has run", statistics.median(cells), "s", Target(3)),
    ]


def stop(peers: bool) -> list[Row]:
    """Stop in what ranks are busy with: control back, and the next cell."""
    rows = []
    with SkyNotebook() as notebook:
        for where, code in _BUSY.items():
            busy = f'%%sky\nprint("inside", flush=True)\n{code}\n'
            rows += _stopped(notebook, where, busy, inside=1)
        rows += _stopped(notebook, "in a collective", _COLLECTIVE, inside=3)
    return rows


def _stopped(notebook: SkyNotebook, where: str, busy: str, inside: int) -> list[Row]:
    controls, cells = [], []
    for _ in range(_ROUNDS):
        notebook.run(_PIDS)
        act = _Once(inside, notebook.interrupt)
        cell = notebook.run(busy, on_text=act, fails=True)
        _check(cell, "stopped after")
        controls.append(cell.ended - act.at)
        cells.append(_next_cell(notebook) - act.at)
    return [
        Row(
            f"Stop {where}: control back",
            statistics.median(controls),
            "s",
            Target(1),
            note=spread(controls),
        ),
        Row("… until the next cell has run", statistics.median(cells), "s", note=spread(cells)),
    ]


def _next_cell(notebook: SkyNotebook) -> float:
    """Run a cell that needs every rank and the group, and return when it had."""
    cell = notebook.run(_PROOF)
    assert notebook.value("total") == 4.0
    return cell.ended


def _check(cell: Cell, expected: str) -> None:
    assert cell.error is not None
    said = ": ".join(cell.error)
    assert expected in said, f"{expected!r} was expected in the error, but it says {said}"


class _Once:
    """Acts as soon as enough ranks have printed that they are inside; ``at`` is when it did."""

    def __init__(self, ranks: int, action) -> None:
        self.at = 0.0
        self._ranks = ranks
        self._action = action

    def __call__(self, text: str) -> None:
        if not self.at and text.count("inside") >= self._ranks:
            self.at = time.monotonic()
            self._action()
