"""The process that keeps the volumes of a node, with buckets on this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.node.volumes.leases import break_time
from jupyter_sky.transport.volumes.asking import ask
from tests.lab.buckets import KEY, SECRET, Buckets, serving
from tests.waiting import until

_SHORT = """
from jupyter_sky.node.volumes import fetching, keeper
fetching._MARGIN = {margin}
keeper._LAST_WITHIN = {last}
keeper.serve({place!r})
"""

READS_EVERYTHING = "-dac_override,-dac_read_search"
"""What lets root read folders of all users, for `keeping`."""


@dataclass
class Keeper:
    """The process, and where its volume is."""

    process: subprocess.Popen[bytes]
    socket: str
    data: Path
    address: str
    notes: list[str] = field(default_factory=list)

    def ask(self, op: str, **fields: Any) -> Any:
        """Ask it for something, and return what it says."""
        return ask(self.socket, {"op": op, **fields})

    def mount(self, url: str, address: str = "", **fields: Any) -> str:
        """Make the volume; return why that fails."""
        order = order_of(url, self.data, address or self.address)
        answer = self.ask("mount", volumes=[{**order, **fields}])
        self.notes = answer["notes"]
        trouble: str = answer["trouble"]
        return trouble

    def state(self) -> dict[str, Any]:
        """Return the state of the volume."""
        found: dict[str, Any] = self.ask("state")["volumes"][0]
        return found

    def end(self) -> None:
        """End it as an agent's end does."""
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait(timeout=100)


def order_of(url: str, data: Path, address: str) -> dict[str, Any]:
    """Return the order of a volume at ``data``."""
    return {
        "url": url,
        "path": str(data),
        "read_only": False,
        "limit": 10**9,
        "options": {"endpoint": address, "region": "us-east-1"},
        "token": {
            "fields": {"access_key_id": KEY, "secret_access_key": SECRET},
            "expires": None,
        },
    }


@pytest.fixture(scope="module")
def server() -> Iterator[Buckets]:
    with serving() as made:
        yield made


@pytest.fixture
def bucket(server: Buckets) -> Buckets:
    for name in server.names():
        server.client.delete_object(Bucket=server.name, Key=name)
    server.asked.clear()
    return server


@pytest.fixture
def keeper(bucket: Buckets, tmp_path: Path, workplace: Path) -> Iterator[Keeper]:
    with keeping(tmp_path / "data", bucket, workplace) as made:
        yield made


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of its own, of little more than a megabyte."""
    place = tmp_path / "disk"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1100k", "none", str(place)], check=True)
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


@contextmanager
def keeping(
    data: Path,
    bucket: Buckets,
    workplace: Path,
    let_wait: float | None = None,
    host: str = "",
    last: float = 60.0,
    without: str = "",
) -> Iterator[Keeper]:
    """Start a keeper for a volume at ``data``, and end it.

    Programs are let wait for so many seconds, or as long as Linux allows. With ``host`` it is on a
    host of its own, which shares the disk. In the end it writes back for ``last`` seconds.
    It is root ``without`` those capabilities.
    """
    workplace.mkdir(exist_ok=True)
    place = str(workplace / "keeper.sock")
    command = [sys.executable, "-m", "jupyter_sky.node.volumes.keeper", place]
    if let_wait is not None:
        margin = break_time() - let_wait
        command[1:] = ["-c", _SHORT.format(margin=margin, last=last, place=place)]
    if host:
        apart = "unshare --pid --uts --mount --fork --mount-proc --kill-child sh -c"
        command = [*apart.split(), f'hostname {host} && exec "$@"', "sh", *command]
    if without:
        command = ["setpriv", f"--bounding-set={without}", f"--inh-caps={without}", *command]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    made = Keeper(process, place, data, bucket.address)
    try:
        yield made
    finally:
        made.end()
        process.stdout.close()
        Path(place).unlink()


@contextmanager
def forwarding(address: str, goes_on: Callable[[int, bool], bool]) -> Iterator[str]:
    """Give an address that leads to another one.

    Parameters
    ----------
    address
        The other one.
    goes_on
        Called before bytes are passed on, with their number and whether they are of an answer; if
        it returns ``False``, the connection is lost instead.
    """
    host, _, port = address.removeprefix("http://").partition(":")
    listener = socket.create_server(("127.0.0.1", 0))

    def pass_on(source: socket.socket, target: socket.socket, is_back: bool) -> None:
        with suppress(OSError):
            while (data := source.recv(65536)) and goes_on(len(data), is_back):
                target.sendall(data)
        for each in (source, target):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def serve() -> None:
        while True:
            try:
                ours, _ = listener.accept()
            except OSError:
                return
            theirs = socket.create_connection((host, int(port)))
            for pair in ((ours, theirs, False), (theirs, ours, True)):
                threading.Thread(target=pass_on, args=pair, daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        listener.close()


@contextmanager
def holding(address: str, held: threading.Event) -> Iterator[str]:
    """Give an address that leads to another one, and passes nothing back while ``held`` is set."""

    def goes_on(size: int, is_back: bool) -> bool:
        if is_back:
            until(lambda: not held.is_set())
        return True

    with forwarding(address, goes_on) as given:
        try:
            yield given
        finally:
            held.clear()
