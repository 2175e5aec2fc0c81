"""The process that keeps the volumes of a node, with buckets on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.transport.volumes.asking import ask
from tests.lab.buckets import KEY, SECRET, Buckets, serving


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
        order = {
            "url": url,
            "path": str(self.data),
            "read_only": False,
            "limit": 10**9,
            "options": {"endpoint": address or self.address, "region": "us-east-1"},
            "token": {
                "fields": {"access_key_id": KEY, "secret_access_key": SECRET},
                "expires": None,
            },
            **fields,
        }
        answer = self.ask("mount", volumes=[order])
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


@contextmanager
def keeping(data: Path, bucket: Buckets, workplace: Path) -> Iterator[Keeper]:
    """Start a keeper for a volume at ``data``, and end it."""
    workplace.mkdir(exist_ok=True)
    socket = str(workplace / "keeper.sock")
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyter_sky.node.volumes.keeper", socket],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    assert process.stdout
    assert process.stdout.readline() == b"ready\n"
    made = Keeper(process, socket, data, bucket.address)
    try:
        yield made
    finally:
        made.end()
        process.stdout.close()
        Path(socket).unlink()
