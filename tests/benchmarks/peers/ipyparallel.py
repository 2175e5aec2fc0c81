"""ipyparallel: ``%%px`` and a direct view of all engines."""

from __future__ import annotations

import ipyparallel as ipp
import numpy as np
from IPython.core.getipython import get_ipython

from tests.benchmarks.peers import Peer
from tests.benchmarks.peers.work import free_port, join, look


class IPyParallel(Peer):
    def start(self, ranks: int) -> None:
        self._cluster = ipp.Cluster(n=ranks)
        self._view = self._cluster.start_and_connect_sync(activate=True)[:]
        self._view.block = True
        self._view.scatter("rank", range(ranks), flatten=True)
        joined = self._view.apply_sync(join, ipp.Reference("rank"), ranks, free_port())
        assert joined == [ranks] * ranks

    def round_trip(self) -> None:
        get_ipython().run_cell_magic("px", "", "pass")

    def push(self, array: np.ndarray) -> list[int]:
        self._view.push({"data": array})
        return self.push_again()

    def push_again(self) -> list[int]:
        return self._view.apply_sync(look, ipp.Reference("data"))

    def stop(self) -> None:
        self._cluster.stop_cluster_sync()
