"""A machine that is reached over SSH, with an agent of ours."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Node
from jupyter_sky.providers.ssh.connection.connection import Line, lines
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.setup.agent import end_agent
from jupyter_sky.providers.ssh.setup.probe import Probe, probe

T = TypeVar("T")

_threads = ThreadPoolExecutor(64, "sky-ssh")


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, and wait for it."""
    return await asyncio.get_running_loop().run_in_executor(_threads, function, *args)


@dataclass(frozen=True)
class SSHMachine:
    """A host with an agent, which is one node.

    Attributes
    ----------
    host
        As the person typed it, without its number of ranks.
    folder, blobs
        The agent's folder there, and that of its large data.
    python, code
        What runs the bridge: the interpreter, and the folder of our package.
    """

    host: str
    folder: str
    blobs: str
    python: str
    code: str
    nodes: tuple[Node, ...]
    shares_files = False

    async def open(self) -> socket.socket:
        """Connect to the agent over a bridge."""
        python, code, path = map(shlex.quote, (self.python, self.code, f"{self.folder}/agent.sock"))
        bridge = f"{python} -P -m jupyter_sky.node.bridge {path}"
        try:
            return await in_thread(self._line.bridge, f"env PYTHONPATH={code} {bridge}")
        except SkyError as error:
            raise OSError(f"{self.host}: {error}") from None

    async def remove(self) -> None:
        """Kill an agent that is left, and remove its files."""
        try:
            await in_thread(end_agent, self._line, self.folder, self.blobs)
        except SkyError as error:
            raise OSError(f"{self.host}: {error}") from None
        finally:
            self._line.close_if_unused()

    def row(self) -> dict[str, Any]:
        """Return where the agent is."""
        return {
            "host": self.host,
            "folder": self.folder,
            "blobs": self.blobs,
            "python": self.python,
            "code": self.code,
            "nodes": [node.message() for node in self.nodes],
        }

    def with_nodes(self, nodes: Sequence[Node]) -> SSHMachine:
        """Return the same machine, standing for another node."""
        return replace(self, nodes=tuple(nodes))

    def look(self) -> Probe:
        """Look at the host as it is now."""
        return probe(self._line)

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> SSHMachine:
        """Return the machine that `row` described."""
        return cls(**{**row, "nodes": tuple(map(Node.of, row["nodes"]))})

    @property
    def _line(self) -> Line:
        return lines.get(parse_one(self.host))
