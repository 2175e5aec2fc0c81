"""Templates: a process with everything imported is left behind for the next clusters.

What is wanted: the second cluster on a machine should not wait for `import torch` again.

What does not work: handing the fork server on when its cluster ends. It would carry that cluster's
history, and a cluster that starts beside the first one would still have to wait.

The solution: before its first rank, a fork server forks a *template*. It has one thread and no
descriptor except the socket that it listens on, and forks a fork server for each agent that asks.
An agent finds it by its name, which encodes what both must have in common (`likeness`). It ends a
minute after the last of its fork servers. Until then it costs hardly any memory, since it shares
pages with its forks. In the same way, an agent leaves a template for further agents, since imports
are most of its work.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import mmap
import os
import selectors
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.node.forking.start import replace_streams
from jupyter_sky.node.process_stat import stat_fields
from jupyter_sky.transport.templates import asking
from jupyter_sky.transport.templates.import_path import import_path, locations
from jupyter_sky.transport.templates.later import LATER

UNUSED_FOR = 60.0
"""Seconds after which a template ends from which no fork server is left."""

_SETTLED = 5.0  # seconds after an order for which the cluster needs the processors itself
_SOON = 1.0  # seconds after an order, if the next clusters need later imports as well

_AT_START = frozenset({"sitecustomize", "usercustomize"})
"""What Python imports by itself at its start, from wherever there is one."""

_needed = mmap.mmap(-1, mmap.PAGESIZE)
"""Memory that a template shares with all that descend from it: whether a rank has used `LATER`.

A template has time for these imports. But only where nothing else needs the processors, like the
training that the cluster is there for; or where a rank has needed one: those of the next cluster
will as well, each by itself.
"""


@dataclass(frozen=True)
class Wanted:
    """What a fork of a template becomes: it answers on ``fd`` and works for ``folder``."""

    fd: int
    folder: Path


def leave_template(
    place: str, let_go: Callable[[], object], own: Sequence[str], users: str
) -> Wanted | None:
    """Leave a template behind; returns once here, and once in each fork of the template.

    Parameters
    ----------
    place
        Where it listens.
    let_go
        Closes the sockets and pipes of this process, which a template must not have.
    own
        The interpreter's own import path.
    users
        What it forks, for its title.

    Returns
    -------
    Wanted or None
        ``None`` here; in a fork of the template, what it becomes.
    """
    user = os.getpid()
    try:
        # From now on, agents wait for the template instead of importing everything themselves.
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
        # Nobody has to reap a process whose parent has ended.
        if not os.fork():
            let_go()
            os.setsid()
            replace_streams(os.open(os.devnull, os.O_RDWR), 0, 1, 2)
            order = Template(listener, user, own, users).serve()
    except BaseException:
        traceback.print_exc()
    if order is None:
        os._exit(0)
    return order


def tell_template() -> None:
    """Tell the template, at the end of a rank, that the rank made the later imports."""
    if any(name in sys.modules for name in LATER.values()):
        _needed[0] = 1


class Template:
    """Forks processes on request, until none of them is left.

    Parameters
    ----------
    listener
        The socket on which requests arrive.
    user
        Process id of the process that it was forked from.
    own
        The interpreter's own import path.
    users
        What it forks, for its title.
    """

    def __init__(self, listener: socket.socket, user: int, own: Sequence[str], users: str) -> None:
        write_title(f"jupyter-sky template: has imported what {users} need, for the next cluster")
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
        self._later = [name for parent, name in LATER.items() if parent in sys.modules]
        self._used = time.monotonic()

    def serve(self) -> Wanted | None:
        """Fork on request; return the order in each fork, and ``None`` at the end."""
        while self._is_found():
            ends_in = self._used + UNUSED_FOR - time.monotonic()
            if not self._users and ends_in <= 0:
                self._place.unlink()
                break
            wait = UNUSED_FOR if self._users else ends_in
            if self._later:
                wait = _SOON if _needed[0] else _SETTLED
            ready = self._selector.select(wait)
            for key, _ in ready:
                if key.fileobj is not self._listener:
                    self._remove_user(key.fd)
                elif order := self._answer():
                    return order
            if self._later and not ready and (_needed[0] or _is_quiet()):
                self._import_later()
        return None

    def _is_found(self) -> bool:
        """Return whether agents find this template; another one may have taken its name."""
        with contextlib.suppress(OSError):
            return self._place.stat().st_ino == self._inode
        return False

    def _answer(self) -> Wanted | None:
        """Fork for an agent; in the fork, return what is wanted."""
        asker, _ = self._listener.accept()
        descriptors: list[int] = []
        with asker:
            try:
                asker.settimeout(1)
                _, descriptors, _, _ = socket.recv_fds(asker, 1, 2)
                order = json.loads(b"".join(iter(lambda: asker.recv(64 * 1024), b"")))
                if not self._is_like_new():
                    self._place.unlink()
                    return None
                if not self._is_found_from(import_path(order["path"], order["env"], self._own)):
                    return None
                self._used = time.monotonic()
                if not (pid := os.fork()):
                    return self._become(order, descriptors, asker)
                self._add_user(pid)
            except (OSError, ValueError, LookupError):
                pass  # the agent does without a template
        for fd in descriptors:
            os.close(fd)
        return None

    def _become(
        self, order: asking.Order, descriptors: Sequence[int], asker: socket.socket
    ) -> Wanted:
        """In a fork, become what was ordered, unless nobody waits for it any more."""
        try:
            self._close()
            answers_at, *logs = descriptors
            os.set_inheritable(answers_at, False)
            os.setsid()
            for log in logs:
                replace_streams(log, 1, 2)
            os.environ.clear()
            os.environ.update(order["env"])
            time.tzset()
            if order["cwd"]:
                os.chdir(order["cwd"])
            asker.sendall(str(os.getpid()).encode())
        except BaseException:
            os._exit(1)
        return Wanted(answers_at, Path(order["folder"]))

    def _is_like_new(self) -> bool:
        """Return whether an agent would get the same modules if it imported them now."""
        threads = list(Path("/proc/self/task").iterdir())
        return len(threads) == 1 and self._files == _stamps(self._files)

    def _is_found_from(self, path: Sequence[str]) -> bool:
        """Return whether this import path finds the modules where they are."""
        return locations(_AT_START.union(self._found), path) == self._found

    def _look_at_modules(self) -> None:
        """Record where the modules imported so far are, and the state of their files."""
        self._files = {**_stamps(_imported_files()), **self._files}
        names = _AT_START.union(name for name in sys.modules if "." not in name)
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
        with contextlib.suppress(Exception):  # the cluster that needs it imports it, and says so
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


def _is_quiet() -> bool:
    """Return whether half of the processors were idle in the last minute."""
    with contextlib.suppress(OSError):
        return os.getloadavg()[0] < (os.cpu_count() or 1) / 2
    return False


def write_command(*words: str, fill: str = "\0") -> None:
    """Set the arguments that the system shows behind this process's module.

    A fork has those of its parent, and the folder among them identifies processes of a cluster.
    Unused room is filled.
    """
    write_title("\0".join([*sys.orig_argv[:4], *words]), fill)


def write_title(text: str, fill: str = "\0") -> None:
    """Set the command line that the system shows for this process, if there is room for it."""
    title = os.fsencode(text)
    with contextlib.suppress(OSError, ValueError, IndexError):
        fields = stat_fields("/proc/self")
        start, end = int(fields[45]), int(fields[46])
        if 0 < len(title) < end - start:
            shown = title.ljust(end - start - 1, os.fsencode(fill)) + b"\0"
            ctypes.memmove(start, shown, end - start)


def _listen(place: Path) -> socket.socket:
    """Listen at a place, for this user only, even if a dead process left a socket there."""
    place.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(place))
    place.chmod(0o600)  # the folder is private to this user
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
    """Return the modification times and sizes of files."""
    found = {}
    for file in files:
        with contextlib.suppress(OSError):
            status = os.stat(file)  # noqa: PTH116 - thousands of files
            found[file] = (status.st_mtime_ns, status.st_size)
    return found
