"""A Dask process on a node: ``python -m jupyter_sky.plugins.dask_cluster.process``.

Its standard input is a socket to the rank that started it. The rank sends the settings as one line
of JSON, so that keys are neither on a command line nor in the environment. When the socket closes,
the rank is gone, and this process ends, too. Dask itself writes the key to a private folder for the
moment in which the ssl module reads it.
"""

from __future__ import annotations

import asyncio
import ctypes
import gc
import json
import os
import signal
import socket
import sys
import threading

from jupyter_sky.plugins.dask_cluster.settings import ProcessSettings, ProcessStarted

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve according to the rank's settings until the rank is gone."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    link = socket.socket(fileno=os.dup(0))
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    lines = link.makefile("rb")
    settings: ProcessSettings = json.loads(lines.readline() or "null") or sys.exit(1)
    threading.Thread(target=_end_with, args=(link,), daemon=True).start()
    os.environ.pop("PYTHONPATH", None)
    if settings["python_path"] is not None:
        os.environ["PYTHONPATH"] = settings["python_path"]
    sys.path[:] = [*dict.fromkeys([*sys.path, *settings["sys_path"]])]
    asyncio.run(_serve(settings, link))


def _end_with(link: socket.socket) -> None:
    try:
        while link.recv(4096):
            pass
    finally:
        os._exit(0)


async def _serve(settings: ProcessSettings, link: socket.socket) -> None:
    # Imports make no garbage, and collecting it takes a fifth of their time.
    gc.disable()
    from jupyter_sky.plugins.dask_cluster import servers

    async with servers.make(settings) as server:
        gc.freeze()
        gc.enable()
        pages = server.services.get("dashboard")
        answer: ProcessStarted = {"port": server.port, "pages": pages.port if pages else 0}
        link.sendall(json.dumps(answer).encode() + b"\n")
        await server.finished()


if __name__ == "__main__":
    main()
