"""Starts Dask's processes on ranks, and restarts them when they end.

A Dask process belongs to the rank beside which it runs. It ends when the socket that is its
standard input closes, and the system kills it with the rank.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import cast

import jupyter_sky
from jupyter_sky.api.instance import InstanceInfo, instance_info
from jupyter_sky.errors import SkyError
from jupyter_sky.plugins.dask_cluster.settings import (
    ProcessSettings,
    ProcessStarted,
    Role,
    SchedulerPlace,
    WorkerOptions,
)
from jupyter_sky.serialization.process.rank_variables import for_others

STARTED_WITHIN = 60.0
"""Seconds for the scheduler to start."""

_PROCESS = "jupyter_sky.plugins.dask_cluster.process"
_PAUSE = 1.0  # seconds until an ended process is restarted

# As Dask's own command line does: a task must not use more threads than its worker has.
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")

_started: dict[Role, tuple[SchedulerPlace, _KeptProcess]] = {}


def start_scheduler(place: SchedulerPlace) -> SchedulerPlace:
    """Start the scheduler, unless it is running; return where it listens.

    Parameters
    ----------
    place
        Where it was before; with port 0, it listens on free ports.
    """
    if "scheduler" in _started:
        return _started["scheduler"][0]
    host = _own_addr(_info())
    process = _KeptProcess(_settings("scheduler", replace(place, host=host)))
    started = process.start()
    place = replace(place, host=host, port=started["port"], pages=started["pages"])
    _started["scheduler"] = place, process
    return place


def start_worker(place: SchedulerPlace, options: WorkerOptions) -> None:
    """Start a worker for the scheduler at ``place``, unless it is running; do not wait."""
    if "worker" in _started:
        former, process = _started.pop("worker")
        if former.address == place.address:
            _started["worker"] = former, process
            return
        process.end()
    process = _KeptProcess(_settings("worker", place, options))
    process.start_soon()
    _started["worker"] = place, process


def be_used() -> None:
    """Do nothing, in a run: the cluster is not idle while Dask works."""


class _KeptProcess:
    """A Dask process that is restarted when it ends.

    Parameters
    ----------
    settings
        The settings for the process.
    """

    def __init__(self, settings: ProcessSettings) -> None:
        self._settings = settings
        self._over = threading.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._link: socket.socket | None = None

    def start(self) -> ProcessStarted:
        """Start it; return the ports on which it listens, once it does."""
        self._spawn()
        started = self._answer()
        # After a restart, it listens at the same place.
        self._settings["port"], self._settings["pages"] = started["port"], started["pages"]
        self._keep()
        return started

    def start_soon(self) -> None:
        """Start it, without waiting until it listens."""
        self._spawn()
        self._keep()

    def end(self) -> None:
        """End it for good."""
        self._over.set()
        self._kill()

    def _keep(self) -> None:
        threading.Thread(target=self._start_again, name="sky-dask", daemon=True).start()

    def _start_again(self) -> None:
        while True:
            assert self._process is not None
            self._process.wait()
            if self._over.wait(_PAUSE):
                return
            with contextlib.suppress(OSError):  # the system may lack resources for it now
                self._spawn()

    def _spawn(self) -> None:
        if self._link:
            self._link.close()
        self._link, theirs = socket.socketpair()
        with theirs:
            log = int(os.environ.get("JUPYTER_SKY_LOG_FD", "2"))
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", _PROCESS],
                stdin=theirs.fileno(),
                stdout=log,
                stderr=log,
                env=_environment(),
                # Signals that stop a cell must not reach Dask's tasks.
                start_new_session=True,
            )
        if self._over.is_set():
            self._kill()
            return
        self._link.sendall(json.dumps(self._settings).encode() + b"\n")

    def _answer(self) -> ProcessStarted:
        assert self._link is not None
        self._link.settimeout(STARTED_WITHIN)
        try:
            answer = self._link.makefile("rb").readline()
        except TimeoutError:
            answer = b""
        if not answer:
            self.end()
            raise SkyError("Dask's scheduler did not start: `%sky logs 0` shows what it said.")
        return cast(ProcessStarted, json.loads(answer))

    def _kill(self) -> None:
        if self._process:
            self._process.kill()


def _settings(
    role: Role, place: SchedulerPlace, options: WorkerOptions | None = None
) -> ProcessSettings:
    info, options = _info(), options or WorkerOptions()
    addr, credentials = _own_addr(info), place.credentials[role]
    beside = sum(len(peer.ranks) for peer in info.peers if peer.addr == addr)
    is_worker = role == "worker"
    return {
        "role": role,
        "host": addr,
        "port": 0 if is_worker else place.port,
        "pages": 0 if is_worker else place.pages,
        "scheduler": place.address if is_worker else "",
        "authority": credentials.authority,
        "certificate": credentials.certificate,
        "key": credentials.key,
        "name": f"rank-{info.rank}",
        "concurrency": options.concurrency,
        "memory": options.memory or 0,
        "beside": max(1, beside),
        "folder": os.environ["JUPYTER_SKY_FOLDER"],
        "sys_path": list(sys.path),
        "python_path": os.environ.get("PYTHONPATH"),
    }


def _environment() -> dict[str, str]:
    # Whatever is in the rank's folder, the process must find our own package first.
    code = str(Path(jupyter_sky.__file__).parent.parent)
    return {**_ONE_THREAD, **for_others(), "PYTHONPATH": code}


def _own_addr(info: InstanceInfo) -> str:
    return next(peer.addr for peer in info.peers if peer.node == info.node)


def _info() -> InstanceInfo:
    info = instance_info()
    if info is None:
        raise SkyError("Dask runs beside the ranks of a cluster, and this is none.")
    return info
