"""The fork server: imports what ranks need once, and forks them.

It never touches CUDA and has a single thread, so that it can be forked safely. It is the parent of
the ranks and reaps them. If the agent is killed, it ends the ranks and removes whatever they leave
before it ends itself: nothing stays behind.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import errno
import faulthandler
import gc
import importlib
import os
import select
import selectors
import shutil
import signal
import socket
import sys
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgpack

from jupyter_sky.node.forking.descendants import (
    RANK_PID,
    kill_all,
    kill_descendants,
    kill_group,
)
from jupyter_sky.node.forking.template import leave_template, tell_template, write_command
from jupyter_sky.node.packages import overlay
from jupyter_sky.node.pipes import pipes_of
from jupyter_sky.serialization import imported_versions
from jupyter_sky.serialization.process import environment
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from jupyter_sky.transport.templates.import_path import import_path, own_entries

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jupyter_sky.node.rank.ipython.shell import RankShell
    from jupyter_sky.transport.protocol.rank_messages import (
        ForkRequest,
        ForkServerMessage,
        Imported,
    )

PR_SET_PDEATHSIG = 1
PR_SET_NAME = 15
PR_SET_CHILD_SUBREAPER = 36

_DESCRIPTORS = 6
"""Sockets, pipes and the file that come with the request for a rank."""

_libc = ctypes.CDLL(None)


def main(agent_fd: int, folder: Path, place: str) -> None:
    """Serve the agent at the other end of ``agent_fd``; its specification is in ``folder``.

    Parameters
    ----------
    place
        Where to let a template listen from now on; empty for none.
    """
    agent = socket.socket(fileno=agent_fd)
    spec = AgentSpec.from_json((folder / "spec.json").read_text())
    own = own_entries()
    # During the imports this process does not listen to the agent, but must end when the agent
    # does.
    end_with_parent()
    if _is_left(agent):  # it has ended before that
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _set_up_imports(spec, own)
    shell, imported = _import_all(spec)
    _libc.prctl(PR_SET_PDEATHSIG, 0, 0, 0, 0)
    # Modules that could not be imported may be there next time.
    if (
        place
        and not imported["missing"]
        and (wanted := leave_template(place, agent.close, own, users="ranks"))
    ):
        agent, folder = socket.socket(fileno=wanted.fd), wanted.folder
        write_command(str(wanted.fd), str(folder))
        spec = AgentSpec.from_json((folder / "spec.json").read_text())
        _set_up_imports(spec, own)
        shell.find_profile()
    _import_soon(spec.soon)
    # Packages installed later belong to one cluster, and a template belongs to none.
    overlay.add_to_path(folder)
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    wakeup, waker = socket.socketpair()
    waker.setblocking(False)
    signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    # The loop notices if the agent has already ended.
    with contextlib.suppress(OSError):
        agent.send(msgpack.packb(imported))
    ForkServer(agent, wakeup, shell, spec, folder).serve()
    # Exit without clean-up: tearing down torch's modules takes half as long as importing them, and
    # the agent waits for it.
    os._exit(0)


def _is_left(sock: socket.socket) -> bool:
    """Return whether nobody has the other end of a socket any more."""
    poll = select.poll()
    poll.register(sock, 0)  # that its other end is closed is told in any case
    return bool(poll.poll(0))


def _set_up_imports(spec: AgentSpec, own: Sequence[str]) -> None:
    """Set the working folder and the import path that the specification asks for."""
    sys.path[:] = import_path(spec.sys_path, os.environ, own)
    os.environ.pop("PYTHONPATH", None)
    if spec.python_path is not None:
        os.environ["PYTHONPATH"] = spec.python_path
    with contextlib.suppress(OSError):
        os.chdir(spec.cwd)


def _import_all(spec: AgentSpec) -> tuple[RankShell, Imported]:
    """Import what ranks need; return the shell that they inherit, and the message to the agent."""
    # Imports make no garbage, and collecting it takes a quarter of their time.
    gc.disable()
    missing = {}
    for name in spec.preload:
        try:
            importlib.import_module(name)
        except Exception as error:  # a module may raise anything while it is imported
            missing[name] = f"{type(error).__name__}: {error}"
    # Every rank needs these; looking up a host imports the second one.
    from encodings import idna  # noqa: F401

    from jupyter_sky.node.rank import worker  # noqa: F401
    from jupyter_sky.node.rank.ipython import shell
    from jupyter_sky.transport.protocol.versions import versions

    made = shell.make_shell()
    _make_inheritable()
    gc.enable()
    return made, {"prepared": versions(), "missing": missing}


def _import_soon(names: Sequence[str]) -> None:
    """Import what ranks will need soon: once here, and not in each of them.

    A template does not wait for it, and may have it already.
    """
    if not (lacking := [name for name in names if name not in sys.modules]):
        return
    gc.disable()
    for name in lacking:
        with contextlib.suppress(Exception):  # a rank that needs it says what is wrong
            importlib.import_module(name)
    _make_inheritable()
    gc.enable()


def _make_inheritable() -> None:
    """Prepare everything that was imported so far for the ranks, which share its memory."""
    from jupyter_sky.node.rank.namespace import module_reloader

    imported_versions.remember()
    module_reloader.look_ahead()
    _keep_finalizers()
    # Exempt all present objects from collection: otherwise the first collection in every rank would
    # touch, and so copy, every page. To collect once before takes a tenth of a second with torch,
    # and frees nothing that can be measured.
    gc.freeze()


def _keep_finalizers() -> None:
    """Let ranks end without running finalizers that belong to this process.

    torch would deregister thousands of operators, for which a rank would copy half of its memory;
    and a temporary folder that a module made during its import belongs to all ranks.
    """
    registry: Mapping[Any, object] = getattr(weakref.finalize, "_registry", {})
    for finalizer in list(registry):
        finalizer.atexit = False


class ForkServer:
    """The loop of the fork server: forks ranks for the agent, and reaps them.

    Parameters
    ----------
    agent
        Socket to the agent; the fork server ends when the agent does.
    wakeup
        Receives a byte for each signal, so that the end of a child wakes the loop.
    shell
        The shell that ranks inherit.
    spec, folder
        The agent's specification, and its folder.
    """

    def __init__(
        self,
        agent: socket.socket,
        wakeup: socket.socket,
        shell: RankShell,
        spec: AgentSpec,
        folder: Path,
    ) -> None:
        self._agent = agent
        self._wakeup = wakeup
        self._shell = shell
        self._spec, self._folder = spec, folder
        self._ranks: dict[int, frozenset[str]] = {}  # with the names of their pipes

    def serve(self) -> None:
        """Serve the agent until it ends, then end the ranks."""
        selector = selectors.DefaultSelector()
        selector.register(self._agent, selectors.EVENT_READ)
        selector.register(self._wakeup, selectors.EVENT_READ)
        while True:
            for key, _ in selector.select():
                if key.fileobj is self._wakeup:
                    self._wakeup.recv(4096)
                    self._reap()
                elif not self._serve_request():
                    self._clean_up()
                    return

    def _serve_request(self) -> bool:
        """Fork a rank for the agent; return whether the agent is still there."""
        try:
            data, fds, _, _ = socket.recv_fds(self._agent, 256 * 1024, 8)
        except ConnectionError:
            return False
        if not data:
            return False
        request: ForkRequest = msgpack.unpackb(data)
        try:
            pid = self._fork(request, fds)
        except OSError as error:
            # The other ranks continue; the agent asks again.
            reason = error.strerror or str(error)
            self._send({"not_forked": request["rank"], "reason": reason})
        else:
            self._ranks[pid] = pipes_of(fds)
            self._send({"forked": request["rank"], "pid": pid})
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def _fork(self, request: ForkRequest, fds: list[int]) -> int:
        if len(fds) < _DESCRIPTORS:  # the system drops descriptors for which there is no room
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        fork_server = os.getpid()
        has_group, begins = os.pipe()
        try:
            pid = os.fork()
        except OSError:
            os.close(has_group)
            os.close(begins)
            raise
        if pid:
            # Once the agent knows of the rank, it may signal its process group. Until the rank has
            # called setsid there is no such group, and the signal would be lost.
            os.close(begins)
            os.read(has_group, 1)
            os.close(has_group)
            return pid
        code = 1
        try:
            os.setsid()
            os.close(begins)
            os.close(has_group)
            self._become_rank(fork_server, request, fds)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                atexit._run_exitfuncs()
                sys.stdout.flush()
            os._exit(code)

    def _become_rank(self, fork_server: int, request: ForkRequest, fds: list[int]) -> None:
        from jupyter_sky.node.blobs.partial_blob import SPILLED
        from jupyter_sky.node.rank import streams
        from jupyter_sky.node.rank.inspection.inspector import Inspector
        from jupyter_sky.node.rank.seeds import draw_seeds
        from jupyter_sky.node.rank.worker import RankWorker

        end_with_parent()
        if os.getppid() != fork_server:
            return
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        self._agent.close()
        self._wakeup.close()
        for fd in fds:
            os.set_inheritable(fd, False)
        commands, side, out, err, log, stacks = fds
        streams.redirect(out, err)
        _libc.prctl(PR_SET_NAME, f"sky-rank-{request['rank']}".encode(), 0, 0, 0)
        # After a crash in C code, the last lines of the log say where it happened.
        faulthandler.enable()
        if self._spec.umask is not None:
            os.umask(self._spec.umask)
        os.environ.update(request["env"])
        environment.protect({**self._spec.env, **request["env"]})
        os.environ[RANK_PID] = str(os.getpid())
        os.environ["JUPYTER_SKY_LOG_FD"] = str(log)
        os.environ["JUPYTER_SKY_FOLDER"] = str(self._folder)
        _enter(self._spec.cwd)
        sys.argv = [""]  # a script that parses its arguments must not see those of the fork server
        draw_seeds()
        spill = self._folder / SPILLED
        RankWorker(
            request["rank"],
            self._shell,
            socket.socket(fileno=commands),
            socket.socket(fileno=side),
            Inspector(stacks),
            Path(self._spec.blobs),
            spill if spill.is_dir() else None,
        ).serve()
        tell_template()

    def _reap(self) -> None:
        ended: dict[int, int] = {}
        pipes: dict[int, frozenset[str]] = {}
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if not pid:
                    break
                # As the subreaper, the fork server also gets the orphans that ranks leave behind.
                if pid in self._ranks:
                    pipes[pid] = self._ranks.pop(pid)
                    kill_group(pid)
                    ended[pid] = os.waitstatus_to_exitcode(status)
        if ended:
            kill_descendants(pipes, besides=self._ranks)
        for pid, code in ended.items():
            self._send({"exited": pid, "status": code})

    def _send(self, message: ForkServerMessage) -> None:
        with contextlib.suppress(OSError):
            self._agent.send(msgpack.packb(message))

    def _clean_up(self) -> None:
        for pid in self._ranks:
            kill_group(pid)
        kill_all()
        shutil.rmtree(self._spec.blobs, ignore_errors=True)
        Path(self._spec.socket).unlink(missing_ok=True)


def _enter(folder: str) -> None:
    """Enter the working folder, which may have been replaced since this process started.

    If it is gone, a rank begins elsewhere: without a folder it would end, and so would the next.
    """
    with contextlib.suppress(OSError):
        os.chdir(folder)
    with contextlib.suppress(OSError):
        Path.cwd()
        return
    for place in ("~", "/"):
        with contextlib.suppress(OSError, RuntimeError):  # there need not be a home
            os.chdir(Path(place).expanduser())
            break
    print(
        f"The working folder {folder} is gone, and this rank begins in {Path.cwd()}: make that "
        "folder again, then restart the ranks with `%sky restart`.",
        file=sys.stderr,
    )


def end_with_parent() -> None:
    """Have the system kill this process when its parent ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
