"""Ray: one actor a rank, and its object store."""

from __future__ import annotations

import os

import numpy as np

# Before the import: it reports its use to its makers otherwise.
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"

import ray

from tests.benchmarks.peers import Peer
from tests.benchmarks.peers.work import free_port, join, look, nothing

_STORE = 2 * 1024**3


@ray.remote
class _Rank:
    def call(self, function, *args):
        return function(*args)


class Ray(Peer):
    def start(self, ranks: int) -> None:
        ray.init(
            num_cpus=ranks,
            include_dashboard=False,
            object_store_memory=_STORE,
            log_to_driver=False,
            _node_ip_address="127.0.0.1",
        )
        self._ranks = [_Rank.remote() for _ in range(ranks)]
        port = free_port()
        joined = [
            rank.call.remote(join, number, ranks, port) for number, rank in enumerate(self._ranks)
        ]
        assert ray.get(joined) == [ranks] * ranks

    def round_trip(self) -> None:
        ray.get([rank.call.remote(nothing) for rank in self._ranks])

    def push(self, array: np.ndarray) -> list[int]:
        self._data = ray.put(array)
        return self.push_again()

    def push_again(self) -> list[int]:
        return ray.get([rank.call.remote(look, self._data) for rank in self._ranks])

    def stop(self) -> None:
        ray.shutdown()
