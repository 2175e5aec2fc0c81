"""nbdistributed: ``%%distributed``. It has no way to send an array."""

from __future__ import annotations

import contextlib

import numpy as np
from IPython.core.getipython import get_ipython

from tests.benchmarks.peers import Peer


class NBDistributed(Peer):
    def __init__(self) -> None:
        self._shell = get_ipython()
        self._shell.run_line_magic("load_ext", "nbdistributed")
        self._magics = self._shell.magics_manager.magics["cell"]["distributed"].__self__

    def start(self, ranks: int) -> None:
        self._shell.run_line_magic("dist_init", f"-n {ranks}")
        # `%dist_init` returns before its workers listen, and what is sent until then is lost.
        while True:
            with contextlib.suppress(TimeoutError):
                self._magics._comm_manager.send_to_all("get_status", {}, timeout=0.2)
                return

    def round_trip(self) -> None:
        self._shell.run_cell_magic("distributed", "", "pass")

    def push(self, array: np.ndarray) -> None:
        return None

    def push_again(self) -> None:
        return None

    def stop(self) -> None:
        # Not `%dist_shutdown`: it kills every process of the machine with "worker" in its command.
        self._magics._comm_manager.shutdown()
        self._magics._process_manager.shutdown()
