"""Ranks as a node makes them: forked after one import of torch, told their place."""

from __future__ import annotations

import os
import socket
import traceback
from collections.abc import Callable
from typing import Any

import pytest

from tests.api.conftest import topology
from tests.forks import forks_with

Rank = Callable[..., Any]


@pytest.fixture(scope="session")
def on_ranks() -> Callable[..., list[Any]]:
    """Call ``function(join, *args)`` on each rank; what it returns, or its error, in rank order.

    Ranks have imported torch, unless something else is named.

    ``join(generation)`` is what a rank does before its group is formed: it says where the head
    listens, and on the head it hands the listening socket over.
    """

    def run(
        function: Rank,
        world_size: int,
        *args: Any,
        absent: tuple[int, ...] = (),
        imported: tuple[str, ...] = ("torch", "torch.distributed"),
    ) -> list[Any]:
        forks = forks_with(*imported)
        listening = [socket.create_server(("127.0.0.1", 0)) for _ in range(3)]
        ports = [each.getsockname()[1] for each in listening]
        results, processes = [], []
        for rank in range(world_size):
            if rank in absent:
                continue
            result, answer = forks.Pipe(duplex=False)
            sockets = listening if rank == 0 else []
            process = forks.Process(
                target=_rank, args=(function, answer, rank, world_size, ports, sockets, args)
            )
            process.start()
            answer.close()
            results.append(result)
            processes.append(process)
        for each in listening:
            each.close()
        try:
            return [result.recv() for result in results]
        finally:
            for process in processes:
                process.kill()
                process.join()

    return run


def _rank(
    function: Rank,
    answer: Any,
    rank: int,
    world_size: int,
    ports: list[int],
    sockets: list[socket.socket],
    args: tuple[Any, ...],
) -> None:
    def join(generation: int = 1) -> None:
        os.environ["COMPUTE_POOL"] = topology(
            rank, world_size, generation=generation, head_port=ports[generation - 1]
        )
        if sockets:
            os.environ["JUPYTER_SKY_HEAD_FD"] = str(sockets[generation - 1].detach())

    try:
        result = function(join, *args)
    except Exception as error:
        error.add_note(traceback.format_exc())
        result = error
    answer.send(result)
