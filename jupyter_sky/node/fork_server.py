"""The fork server: imports what ranks need once, and forks them.

It never touches CUDA and has one thread, so that forking it is safe. It is the parent of the ranks,
reaps them, and outlives a killed agent by the moment it takes to end them and to remove what they
leave: nothing stays behind.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import faulthandler
import gc
import importlib
import json
import os
import selectors
import shutil
import signal
import socket
import sys
import traceback
from pathlib import Path
from typing import Any

import msgpack

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

_RANK_PID = "JUPYTER_SKY_RANK_PID"
"""The variable that tells which rank a process descends from."""

_libc = ctypes.CDLL(None)


def main(agent_fd: int, folder: Path) -> None:
    """Serve the agent at the other end of ``agent_fd``; its spec is in ``folder``."""
    agent = socket.socket(fileno=agent_fd)
    spec = json.loads((folder / "spec.json").read_text())
    # During the imports nobody listens to the agent; if it ends then, so does the fork server.
    end_with_parent()
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    wakeup, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    _place(spec)
    shell, prepared = _prepare(spec)
    agent.send(msgpack.packb(prepared))
    _libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    _Nursery(agent, wakeup, shell, spec).serve()


def _place(spec: dict[str, Any]) -> None:
    """Stand where the notebook stands: its folder, its import path, its environment."""
    os.environ.pop("PYTHONPATH", None)
    if spec["python_path"] is not None:
        os.environ["PYTHONPATH"] = spec["python_path"]
    with contextlib.suppress(OSError):
        os.chdir(spec["cwd"])
    sys.path[:] = [*spec["sys_path"], *(path for path in sys.path if path not in spec["sys_path"])]


def _prepare(spec: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    missing = {}
    for name in spec["preload"]:
        try:
            importlib.import_module(name)
        except Exception as error:
            missing[name] = f"{type(error).__name__}: {error}"
    from jupyter_sky.node.rank import rank, shell  # noqa: F401 - every rank needs them
    from jupyter_sky.transport.versions import versions

    made = shell.make_shell()
    # What is here now is here for good: without this, the first collection in every rank would
    # touch, and so copy, every page.
    gc.collect()
    gc.freeze()
    return made, {"prepared": versions(), "missing": missing}


class _Nursery:
    """The loop of the fork server: forks what the agent asks for, reaps, watches the agent."""

    def __init__(
        self, agent: socket.socket, wakeup: socket.socket, shell: Any, spec: dict[str, Any]
    ) -> None:
        self._agent = agent
        self._wakeup = wakeup
        self._shell = shell
        self._spec = spec
        self._ranks: set[int] = set()

    def serve(self) -> None:
        selector = selectors.DefaultSelector()
        selector.register(self._agent, selectors.EVENT_READ)
        selector.register(self._wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._reap()
                elif not self._obey():
                    self._clean_up()
                    return

    def _obey(self) -> bool:
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, 256 * 1024, 8)
        except ConnectionError:
            return False
        if not data:
            return False
        order = msgpack.unpackb(data)
        pid = self._fork(order, fds)
        for fd in fds:
            os.close(fd)
        self._ranks.add(pid)
        self._tell({"forked": order["rank"], "pid": pid})
        return True

    def _fork(self, order: dict[str, Any], fds: list[int]) -> int:
        fork_server = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        code = 1
        try:
            self._become_rank(fork_server, order, fds)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
                sys.stdout.flush()
            os._exit(code)

    def _become_rank(self, fork_server: int, order: dict[str, Any], fds: list[int]) -> None:
        from jupyter_sky.node.rank import rank

        os.setsid()
        end_with_parent()
        if os.getppid() != fork_server:
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._agent.close()
        self._wakeup.close()
        for fd in fds:
            os.set_inheritable(fd, False)
        commands, side, out, err, log = fds
        rank.take_streams(out, err)
        _libc.prctl(PR_SET_NAME, f"sky-rank-{order['rank']}".encode(), 0, 0, 0)
        # A crash in C code says where it was; that is among the last lines of the log then.
        faulthandler.enable()
        os.environ.update(order["env"])
        os.environ[_RANK_PID] = str(os.getpid())
        os.environ["JUPYTER_SKY_LOG_FD"] = str(log)
        rank.Rank(
            order["rank"],
            self._shell,
            socket.socket(fileno=commands),
            socket.socket(fileno=side),
            Path(self._spec["blobs"]),
        ).serve()

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    return
                # As the reaper of this subtree the fork server also gets what ranks left behind.
                if pid in self._ranks:
                    self._ranks.discard(pid)
                    end_group(pid)
                    end_descendants(of=pid)
                    self._tell({"exited": pid, "status": os.waitstatus_to_exitcode(status)})

    def _tell(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):
            self._agent.send(msgpack.packb(message))

    def _clean_up(self) -> None:
        for pid in self._ranks:
            end_group(pid)
        end_descendants()
        shutil.rmtree(self._spec["blobs"], ignore_errors=True)
        Path(self._spec["socket"]).unlink(missing_ok=True)


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def end_group(leader: int) -> None:
    """Kill a rank and the processes of its group."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def end_descendants(of: int | None = None) -> None:
    """Kill what the ranks, or one of them, started in sessions of their own."""
    import psutil

    with contextlib.suppress(psutil.Error):
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.Error):
                # A process that a rank left is our child now; its variables tell whose it was.
                if of is None or process.environ().get(_RANK_PID) == str(of):
                    process.kill()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
