"""Dask: one worker process a rank, and ``scatter``."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from distributed import Client, LocalCluster, wait

from tests.benchmarks.peers import Peer
from tests.benchmarks.peers.work import free_port, join, look, nothing


class Dask(Peer):
    def start(self, ranks: int) -> None:
        self._cluster = LocalCluster(
            n_workers=ranks, threads_per_worker=1, memory_limit=None, dashboard_address=None
        )
        self._client = Client(self._cluster)
        self._workers = list(self._client.scheduler_info(n_workers=-1)["workers"])
        port = free_port()
        joined = self._on_all(lambda rank: (join, rank, ranks, port))
        assert joined == [ranks] * ranks

    def round_trip(self) -> None:
        self._client.run(nothing)

    def push(self, array: np.ndarray) -> list[int]:
        self._data = self._client.scatter(array, broadcast=True)
        wait(self._data)
        return self.push_again()

    def push_again(self) -> list[int]:
        return self._on_all(lambda rank: (look, self._data))

    def stop(self) -> None:
        self._client.close()
        self._cluster.close()

    def _on_all(self, call: Callable[[int], tuple]) -> list:
        # An impure task is run each time, although nothing about it has changed.
        futures = [
            self._client.submit(*call(rank), workers=[worker], pure=False)
            for rank, worker in enumerate(self._workers)
        ]
        return self._client.gather(futures)
