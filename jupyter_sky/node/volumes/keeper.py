"""The process that keeps the volumes of a node: ``python -m jupyter_sky.node.volumes.keeper PATH``.

It listens on the socket ``PATH``, and ends when its standard input ends, with the process that
started it. Credentials arrive over the socket, and are only kept in memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import signal
import socketserver
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, cast

from jupyter_sky.node.volumes.bucket import BucketError
from jupyter_sky.node.volumes.fetching import Fetcher
from jupyter_sky.node.volumes.leases import Leases
from jupyter_sky.node.volumes.place import VolumeError
from jupyter_sky.node.volumes.tree import Tree
from jupyter_sky.node.volumes.writing import write_back
from jupyter_sky.transport.volumes.requests import (
    MountAnswer,
    VolumeOrder,
    VolumeState,
    WriteBackAnswer,
    WrittenVolume,
)

_WORKERS = 8
_LAST_WITHIN = 60.0
"""Seconds to write back what ranks have written, when the agent is gone."""


class Keeper:
    """The volumes of a node.

    Parameters
    ----------
    socket
        The socket that this process listens on.
    leases
        The leases of this process.
    """

    def __init__(self, socket: str, leases: Leases) -> None:
        self._socket = socket
        self._leases = leases
        # Replaced and never changed, since other threads go through them.
        self._trees: tuple[Tree, ...] = ()
        self._fetcher = Fetcher()
        self._writers = ThreadPoolExecutor(_WORKERS, "write")
        self._turn = threading.Lock()
        self._is_making = False  # volumes, some of which may be known and not be there yet
        self._untold: dict[str, tuple[int, int]] = {}
        self.ended = threading.Event()

    def serve_opens(self) -> None:
        """Fetch files that programs open, for ever."""
        while True:
            opened = self._leases.wait()
            now = time.monotonic()
            for fd in opened:
                for tree in self._trees:
                    with tree.lock:  # its content may just be being dropped
                        entry = tree.by_fd.get(fd)
                    if entry:
                        self._fetcher.open(tree, entry, now)

    def answer(self, request: dict[str, Any]) -> Any:
        """Carry out a request."""
        match request["op"]:
            case "mount":
                return self.mount(request["volumes"])
            case "write_back" if path := request.get("path"):
                return self.write_volume(path, request.get("names", ()), request.get("gone", ()))
            case "write_back":
                return self.write_all(request.get("quietly", False), request.get("settled", False))
            case "state":
                return {"volumes": [_state(tree) for tree in self._trees]}
            case "fetch":
                return self.fetch(request["path"], request["patterns"])
            case "fetch_file":
                return {"trouble": self.fetch_file(request["path"], request["name"])}
            case "replace_file":
                self.replace_file(request["path"], request["name"])
                return {"trouble": ""}
            case "refresh":
                return {"trouble": self.refresh(request["path"])}
            case "end":
                return self.end()
        return {"trouble": f"there is no request {request['op']}"}

    def mount(self, orders: list[VolumeOrder]) -> MountAnswer:
        """Make volumes, all or none of the new ones; give the others new credentials."""
        made: list[Tree] = []
        # Who has the turn may wait for these credentials.
        new = [order for order in orders if not self._renew(order)]
        if not new and not self._is_making:
            return {"trouble": "", "notes": []}
        with self._turn, self._making_volumes():
            for order in orders:
                if self._renew(order):
                    continue
                try:
                    tree = Tree(order, self._leases, self._socket)
                    # It must be known before anybody can open one of its files.
                    self._trees = (*self._trees, tree)
                    made.append(tree)
                    tree.make()
                    if not tree.is_lazy and (trouble := self._fetch_all(tree)):
                        raise VolumeError(f"{order['url']}: {trouble}")
                except (BucketError, VolumeError) as error:
                    for each in made:
                        each.remove()
                    self._trees = tuple(each for each in self._trees if each not in made)
                    return {"trouble": str(error), "notes": []}
        notes = [note for each in made for note in (each.note, _left_out(each)) if note]
        return {"trouble": "", "notes": notes}

    @contextlib.contextmanager
    def _making_volumes(self) -> Iterator[None]:
        self._is_making = True
        try:
            yield
        finally:
            self._is_making = False

    def _renew(self, order: VolumeOrder) -> bool:
        """Give a volume the credentials of an order; return whether it exists."""
        there = self._tree(order["path"])
        if there is None or there.bucket.url != order["url"].rstrip("/"):
            return False
        if order["token"]:  # else the program that asks has none, and those of now may still do
            there.bucket.token = order["token"]
        return True

    def write_all(self, quietly: bool = False, settled: bool = False) -> WriteBackAnswer:
        """Write changes of ranks in all volumes back to the buckets, as the agent asks.

        Parameters
        ----------
        quietly
            Whether no notebook is told now; the next one that asks will be.
        settled
            Whether to leave files that have changed in the last seconds.
        """
        self._fetcher.look_for_closed()
        with self._turn:
            written = self._write_whole(self._trees, not quietly, settled)
            for each in written:
                files, size = self._untold.pop(each["path"], (0, 0))
                each["files"], each["size"] = each["files"] + files, each["size"] + size
                if quietly:
                    self._untold[each["path"]] = each["files"], each["size"]
        if quietly:
            return {"volumes": written}
        troubles, self._fetcher.troubles = self._fetcher.troubles, {}
        for each in written:
            for name, trouble in troubles.items():
                if name.startswith(f"{each['path']}/") and not each["trouble"]:
                    each["trouble"] = f"{name} could not be read: {trouble}"
        return {"volumes": written}

    def write_volume(
        self, path: str, names: Sequence[str] = (), gone: Sequence[str] = ()
    ) -> WriteBackAnswer:
        """Write changes of ranks in a volume back to the bucket, as a program asks.

        Parameters
        ----------
        path
            The volume.
        names
            Only files and folders of these names; everything by default, unless some are gone.
        gone
            Folders that were removed, to be removed from the bucket.
        """
        self._fetcher.look_for_closed()
        if names or gone:  # beside what has the turn: a checkpoint waits for its own alone
            trees = self._trees_at(path)
            return {
                "volumes": [
                    write_back(each, self._fetcher, self._writers, False, names, gone)
                    for each in trees
                ]
            }
        with self._turn:
            return {"volumes": self._write_whole(self._trees_at(path))}

    def _write_whole(
        self, trees: Sequence[Tree], tells: bool = False, settled: bool = False
    ) -> list[WrittenVolume]:
        written = [
            write_back(each, self._fetcher, self._writers, tells, settled=settled) for each in trees
        ]
        for tree in trees:  # what they show elsewhere would be zeros without this process
            for entry in tree.outside():
                self._fetcher.fetch(tree, entry)
        return written

    def _trees_at(self, path: str) -> list[Tree]:
        return [each for each in self._trees if str(each.path) == path]

    def fetch(self, path: str, patterns: list[str]) -> dict[str, Any]:
        """Fetch files whose names match, and wait for them, if there are some for each pattern."""
        tree = self._tree(path)
        if tree is None:
            return {"trouble": f"{path} is no volume", "missing": []}
        with tree.lock:
            missing = _without_file(patterns, [*tree.entries])
        if missing and (missing := _without_file(missing, tree.changed())):
            return {"trouble": "", "missing": missing}
        return {"trouble": self._fetch_all(tree, patterns), "missing": []}

    def fetch_file(self, path: str, name: str) -> str:
        """Fetch one file, and wait for it."""
        tree = self._tree(path)
        entry = tree and tree.find(name)
        return self._fetcher.fetch(tree, entry) if tree and entry else ""

    def replace_file(self, path: str, name: str) -> None:
        """Have a file ready for a program that is about to replace its content."""
        tree = self._tree(path)
        if tree and (entry := tree.find(name)):
            self._fetcher.let_in(tree, entry)

    def refresh(self, path: str) -> str:
        """Show what is new in a bucket."""
        tree = self._tree(path)
        if tree is None:
            return f"{path} is no volume"
        try:
            with self._turn:
                with tree.lock:
                    known = dict(tree.entries)
                tree.show(tree.bucket.list(), known)
        except (BucketError, VolumeError) as error:
            return str(error)
        except OSError as error:
            return f"{tree.path}: {error.strerror}"
        return "" if tree.is_lazy else self._fetch_all(tree)

    def end(self) -> WriteBackAnswer:
        """Write back, and remove all volumes, except files only this node has."""
        answer = self.write_all()
        with self._turn:
            self.remove()
        return answer

    def remove(self) -> None:
        """Do the latter at once: what has the turn may wait for a bucket that does not answer."""
        for tree in self._trees:
            with contextlib.suppress(OSError):  # the others are removed nevertheless
                tree.remove()
        self._trees = ()

    def _fetch_all(self, tree: Tree, patterns: list[str] | None = None) -> str:
        with tree.lock:
            entries = [
                each
                for each in tree.entries.values()
                if each.fd is not None and _matches(each.name, patterns)
            ]
        going = [self._fetcher.begin(tree, each) for each in entries]
        troubles = [each.result() for each in going]
        return next(filter(None, troubles), "")

    def _tree(self, path: str) -> Tree | None:
        place = Path(path).expanduser()
        return next((each for each in self._trees if each.path == place), None)


def _matches(name: str, patterns: list[str] | None) -> bool:
    if not patterns:
        return True
    from fnmatch import fnmatchcase

    return any(fnmatchcase(name, each) or f"{name}/".startswith(f"{each}/") for each in patterns)


def _without_file(patterns: list[str], names: Sequence[str]) -> list[str]:
    """Return the patterns that none of these names matches."""
    return [each for each in patterns if not any(_matches(name, [each]) for name in names)]


def _left_out(tree: Tree) -> str:
    """Say which files of a bucket have no place on a disk; empty if all have one."""
    if not tree.skipped:
        return ""
    others = len(tree.skipped) - 1
    more = f" and {others} more" if others else ""
    return (
        f"{tree.path} lacks {min(tree.skipped)}{more} of "
        f"{tree.bucket.url}: no disk has such a name, or has it beside the others"
    )


def _state(tree: Tree) -> VolumeState:
    with tree.lock:
        sizes = [each.listed.size for each in tree.entries.values()]
    order = tree.order
    return {
        "url": tree.bucket.url,
        "path": str(tree.path),
        "read_only": order["read_only"],
        "limit": order["limit"],
        "files": len(sizes),
        "size": sum(sizes),
        "here": tree.here,
        "fetched": tree.fetched,
        "unwritten": tree.changed(),
    }


def serve(path: str) -> None:
    """Keep volumes until standard input ends."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # whoever has started this says when it ends
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    leases = Leases()
    keeper = Keeper(path, leases)

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            answer = keeper.answer(json.loads(self.rfile.readline()))
            self.wfile.write(json.dumps(answer).encode() + b"\n")

    class Server(socketserver.ThreadingUnixStreamServer):
        daemon_threads = True
        # All ranks of a node may ask at once; beyond so many, connections of asyncio fail.
        request_queue_size = 1024

        def handle_error(self, request: Any, client_address: Any) -> None:
            if not isinstance(sys.exception(), ConnectionError):
                super().handle_error(request, client_address)

    before = os.umask(0o077)
    server = Server(path, Handler)
    os.umask(before)
    threading.Thread(target=keeper.serve_opens, daemon=True).start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.buffer.read()
    # The agent has already ended everything, unless it was killed.
    last = threading.Thread(target=keeper.end, daemon=True)
    last.start()
    last.join(_LAST_WITHIN)
    if last.is_alive():
        keeper.remove()
    cast(Any, os)._exit(0)


if __name__ == "__main__":
    serve(sys.argv[1])
