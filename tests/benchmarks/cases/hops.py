"""The way of an empty cell with its messages alone: what Python code can at best add nothing to.

``python -m tests.benchmarks.cases.hops RANKS`` prints the seconds of each round trip as JSON. The
threads and processes are those of a cell: the user's thread, the background loop, an agent, ranks.
"""

from __future__ import annotations

import asyncio
import json
import os
import queue
import socket
import subprocess
import sys
import threading
import time

from jupyter_sky.transport.frames import PREFIX, decode_message, encode
from tests.paths import ROOT

_WARM_UP = 200
_ROUND_TRIPS = 1000
_MOST = 65536  # bytes of a message


def hops(ranks: int) -> list[float]:
    """Return the seconds of each round trip, taken in a process of its own."""
    command = [sys.executable, "-m", "tests.benchmarks.cases.hops", str(ranks)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    taken: list[float] = json.loads(done.stdout)
    return taken


def _round_trips(ranks: int) -> list[float]:
    ours, theirs = socket.socketpair()
    if os.fork() == 0:
        ours.close()
        _agent(theirs, ranks)
    theirs.close()
    over: queue.SimpleQueue[object] = queue.SimpleQueue()
    loop = asyncio.new_event_loop()

    def background() -> None:
        loop.add_reader(ours, lambda: over.put(_receive(ours)))
        loop.run_forever()

    threading.Thread(target=background, daemon=True).start()
    taken = []
    for _ in range(_WARM_UP + _ROUND_TRIPS):
        started = time.perf_counter()
        loop.call_soon_threadsafe(_send, ours, "run")
        over.get()
        taken.append(time.perf_counter() - started)
    return taken[_WARM_UP:]


def _agent(kernel: socket.socket, ranks: int) -> None:
    pairs = [socket.socketpair() for _ in range(ranks)]
    for _, theirs in pairs:
        if os.fork() == 0:
            for each in (kernel, *(ours for ours, _ in pairs)):
                each.close()
            _rank(theirs)
    for _, theirs in pairs:
        theirs.close()
    asyncio.run(_relay(kernel, [ours for ours, _ in pairs]))


async def _relay(kernel: socket.socket, ranks: list[socket.socket]) -> None:
    loop, over, done = asyncio.get_running_loop(), asyncio.Event(), 0

    def on_kernel() -> None:
        if _receive(kernel) is None:
            over.set()
            return
        for rank in ranks:
            _send(rank, "run")

    def on_rank(rank: socket.socket) -> None:
        nonlocal done
        _receive(rank)
        done += 1
        if done % len(ranks) == 0:
            _send(kernel, "done")

    loop.add_reader(kernel, on_kernel)
    for rank in ranks:
        loop.add_reader(rank, on_rank, rank)
    await over.wait()
    os._exit(0)


def _rank(agent: socket.socket) -> None:
    while _receive(agent) is not None:
        exec(compile("pass", "cell", "exec"), {})
        _send(agent, "done")
    os._exit(0)


def _send(link: socket.socket, op: str) -> None:
    link.sendall(encode({"op": op, "run": "a run"}))


def _receive(link: socket.socket) -> dict[str, object] | None:
    """Return a message, which comes as a whole; ``None`` at the end."""
    data = link.recv(_MOST)
    return decode_message(data[PREFIX.size :]) if data else None


if __name__ == "__main__":
    print(json.dumps(_round_trips(int(sys.argv[1]))))
