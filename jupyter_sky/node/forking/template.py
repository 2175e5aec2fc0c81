"""A process with everything imported is left behind for the agents that start next.

What is wanted: the second cluster on a machine does not wait for `import torch` again. A fork
server could be handed on when its cluster ends, but it would have that cluster's history, and a
cluster beside the first one would wait all the same. So a fork server, before its first rank, forks
a *template*: it has one thread, no descriptor but the socket that it listens to, and forks a fork
server for each agent that asks. An agent finds it by its name, which says what both have in common
(`likeness`). It ends a minute after the last fork server of its own; it costs hardly any memory
until then, as it shares that of its forks.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import selectors
import socket
import sys
import time
import traceback
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jupyter_sky.node.forking.import_path import import_path, locations

UNUSED_FOR = 60.0
"""Seconds after which a template ends from which no fork server is left."""

_SETTLED = 5.0  # seconds after an order in which the cluster needs the processors itself

_LATER = {"torch": "torch._dynamo"}
"""What the first optimizer of a rank imports: a second, for which a template has time."""

_TITLE = b"jupyter-sky template: has imported what ranks need, for the next cluster"


@dataclass(frozen=True)
class Order:
    """What an agent wants: a fork server at the other end of ``sock`` for ``folder``."""

    sock: socket.socket
    folder: Path


def leave_template(place: str, agent: socket.socket, own: Sequence[str]) -> Order | None:
    """Leave a template behind; this returns once here, and once in each of its forks.

    Parameters
    ----------
    place
        Where it listens.
    agent
        The socket to the agent of this process, of which a template knows nothing.
    own
        The import path that the interpreter has by itself.

    Returns
    -------
    Order or None
        ``None`` here; in a fork of the template what the agent wants that asked for it.
    """
    user = os.getpid()
    try:
        # From now on, agents wait for the template instead of importing all of it themselves.
        listener = _listen(Path(place))
        child = os.fork()
    except OSError:
        return None
    if child:
        listener.close()
        os.waitpid(child, 0)
        return None
    order = None
    try:
        # Nobody has to wait for a process whose parent has ended.
        if not os.fork():
            agent.close()
            os.setsid()
            for fd in (0, 1, 2):
                os.dup2(os.open(os.devnull, os.O_RDWR), fd)
            order = Template(listener, user, own).serve()
    except BaseException:
        traceback.print_exc()
    if order is None:
        os._exit(0)
    return order


class Template:
    """Forks fork servers for agents, until none of them is left.

    Parameters
    ----------
    listener
        The socket that agents come to.
    user
        Process id of the fork server that it was forked from.
    own
        The import path that the interpreter has by itself.
    """

    def __init__(self, listener: socket.socket, user: int, own: Sequence[str]) -> None:
        write_title(_TITLE)
        self._own = own
        self._files: dict[str, tuple[int, int]] = {}
        self._found: dict[str, str] = {}
        self._look_at_modules()
        self._listener = listener
        self._place = Path(listener.getsockname())
        _remove_dead(self._place.parent)
        self._inode = self._place.stat().st_ino
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._users: set[int] = set()
        self._add_user(user)
        self._later = [name for parent, name in _LATER.items() if parent in sys.modules]
        self._used = time.monotonic()

    def serve(self) -> Order | None:
        """Fork what agents order; return the order in each fork, and ``None`` at the end."""
        while self._is_found():
            ends_in = self._used + UNUSED_FOR - time.monotonic()
            if not self._users and ends_in <= 0:
                self._place.unlink()
                break
            wait = _SETTLED if self._later else UNUSED_FOR if self._users else ends_in
            ready = self._selector.select(wait)
            for key, _ in ready:
                if key.fileobj is not self._listener:
                    self._remove_user(key.fd)
                elif order := self._answer():
                    return order
            if self._later and not ready:
                self._import_later()
        return None

    def _is_found(self) -> bool:
        """Return whether agents come here; another template may have taken the name."""
        with contextlib.suppress(OSError):
            return self._place.stat().st_ino == self._inode
        return False

    def _answer(self) -> Order | None:
        """Fork for an agent; return its order in the fork."""
        agent, _ = self._listener.accept()
        descriptors: list[int] = []
        with agent:
            try:
                agent.settimeout(1)
                _, descriptors, _, _ = socket.recv_fds(agent, 1, 2)
                wanted = json.loads(b"".join(iter(lambda: agent.recv(64 * 1024), b"")))
                if not self._is_like_new():
                    self._place.unlink()
                    return None
                if not self._is_found_from(import_path(wanted["path"], wanted["env"], self._own)):
                    return None
                self._used = time.monotonic()
                pid = os.fork()
                if not pid:
                    self._close()
                    return _become_fork_server(wanted, descriptors)
                self._add_user(pid)
                agent.sendall(str(pid).encode())
            except (OSError, ValueError, LookupError):
                pass  # the agent starts a fork server of its own
        for fd in descriptors:
            os.close(fd)
        return None

    def _is_like_new(self) -> bool:
        """Return whether an agent that imported the same now would have the same."""
        threads = list(Path("/proc/self/task").iterdir())
        return len(threads) == 1 and self._files == _stamps(self._files)

    def _is_found_from(self, path: Sequence[str]) -> bool:
        """Return whether modules are where this import path finds them, too."""
        return locations(self._found, path) == self._found

    def _look_at_modules(self) -> None:
        """Keep where the modules are that are imported now, and what their files are like."""
        self._files = {**_stamps(_imported_files()), **self._files}
        names = {name for name in sys.modules if "." not in name}
        self._found = {**locations(names, sys.path), **self._found}

    def _add_user(self, pid: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            fd = os.pidfd_open(pid)
            self._users.add(fd)
            self._selector.register(fd, selectors.EVENT_READ)

    def _remove_user(self, fd: int) -> None:
        self._selector.unregister(fd)
        self._users.discard(fd)
        self._used = time.monotonic()
        os.close(fd)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass

    def _import_later(self) -> None:
        gc.disable()
        with contextlib.suppress(Exception):
            importlib.import_module(self._later.pop())
        self._look_at_modules()
        gc.collect()
        gc.freeze()
        gc.enable()

    def _close(self) -> None:
        self._selector.close()
        self._listener.close()
        for fd in self._users:
            os.close(fd)


def write_title(title: bytes) -> None:
    """Have the system show another command line for this process, as far as there is room for it.

    A fork has that of its parent; by the folder in it, what belongs to a cluster is found.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        start, end = int(fields[45]), int(fields[46])
        if 0 < len(title) < end - start:
            ctypes.memmove(start, title.ljust(end - start, b"\0"), end - start)


def _become_fork_server(wanted: dict[str, Any], descriptors: list[int]) -> Order:
    fork_server, log = descriptors
    os.setsid()
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.close(log)
    os.environ.clear()
    os.environ.update(wanted["env"])
    time.tzset()
    words = [*sys.orig_argv[:4], str(fork_server), wanted["folder"]]
    write_title(b"\0".join(os.fsencode(word) for word in words))
    return Order(socket.socket(fileno=fork_server), Path(wanted["folder"]))


def _listen(place: Path) -> socket.socket:
    """Listen at a place for this user alone, also if a dead process has left a socket there."""
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    place.chmod(0o600)  # the folder is for this user alone
    listener.listen()
    return listener


def _remove_dead(folder: Path) -> None:
    """Remove the sockets of templates that were killed."""
    for place in folder.glob("*.template"):
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX) as sock:
            sock.setblocking(False)
            try:
                sock.connect(str(place))
            except ConnectionRefusedError:
                place.unlink()


def _imported_files() -> set[str]:
    files = {getattr(module, "__file__", None) for module in list(sys.modules.values())}
    return {file for file in files if file}


def _stamps(files: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return when files were changed, and how large they are."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(file)  # noqa: PTH116 - thousands of files
            found[file] = (status.st_mtime_ns, status.st_size)
    return found
