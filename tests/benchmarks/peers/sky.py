"""jupyter_sky: ``%%sky``."""

from __future__ import annotations

import numpy as np
from IPython.core.getipython import get_ipython

from tests.benchmarks.peers import Peer

_START = """
import torch.distributed as dist
from tests.benchmarks.peers.work import look

assert dist.get_world_size() == {ranks}
"""


class Sky(Peer):
    def __init__(self) -> None:
        self._shell = get_ipython()
        self._shell.run_line_magic("load_ext", "jupyter_sky")

    def start(self, ranks: int) -> None:
        self._shell.run_cell_magic("sky", f"--nodes {ranks}", _START.format(ranks=ranks))

    def round_trip(self) -> None:
        self._shell.run_cell_magic("sky", "", "pass")

    def push(self, array: np.ndarray) -> list[int]:
        self._shell.user_ns["data"] = array
        return self.push_again()

    def push_again(self) -> list[int]:
        # Nothing says that `data` has not changed: that is found out, and is part of the time.
        self._shell.run_cell_magic("sky", "--gather seen", "seen = look(data)")
        return self._shell.user_ns["seen"]

    def stop(self) -> None:
        self._shell.run_line_magic("sky", "down")
