"""A host with an agent, as a machine."""

from __future__ import annotations

import asyncio
import shlex
import socket
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Node, NotLetIn
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import HostKeyError, LoginError
from jupyter_sky.providers.ssh.connection.host_shell import UNSET
from jupyter_sky.providers.ssh.setup.agent import remove_agent
from jupyter_sky.providers.ssh.setup.facts import HostFacts, gather_facts

T = TypeVar("T")

_threads = ThreadPoolExecutor(64, "sky-ssh")


@dataclass(frozen=True)
class SSHMachine:
    """A host with an agent, which is one node.

    Attributes
    ----------
    host
        The host as typed, without its number of ranks.
    folder, blobs
        The agent's folder there, and that of its blobs.
    python, code
        For the bridge: the interpreter, and the folder of our package.
    nodes
        The one node.
    """

    host: str
    folder: str
    blobs: str
    python: str
    code: str
    nodes: tuple[Node, ...]
    shares_files = False
    blobs_here = None

    @property
    def is_answering(self) -> bool:
        """Whether the host, or one on the way to it, has said something in the last moments."""
        return self._connection.is_answering

    async def open(self) -> socket.socket:
        """Connect to the agent."""
        path = f"{self.folder}/agent.sock"
        python, code, to = map(shlex.quote, (self.python, self.code, path))
        unset = " ".join(f"-u {name}" for name in UNSET)
        start = f"env {unset} PYTHONPATH={code} {python} -P -m jupyter_sky.node.bridge {to}"
        try:
            return await in_thread(self._connection.open_bridge, start, path)
        except (HostKeyError, LoginError) as error:
            raise NotLetIn(f"{self.host}: {error}") from None
        except SkyError as error:
            raise OSError(f"{self.host}: {error}") from None

    async def remove(self) -> None:
        """Kill the agent if it is still there, and remove its files."""
        try:
            await in_thread(remove_agent, self._connection, self.folder, self.blobs)
        except SkyError as error:
            raise OSError(f"{self.host}: {error}") from None
        finally:
            self._connection.close_if_unused()

    def row(self) -> dict[str, Any]:
        """Return the data with which to find the agent."""
        return {
            "host": self.host,
            "folder": self.folder,
            "blobs": self.blobs,
            "python": self.python,
            "code": self.code,
            "nodes": [node.message() for node in self.nodes],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SSHMachine:
        """Return the machine that `row` described."""
        return cls(**{**row, "nodes": tuple(map(Node.from_message, row["nodes"]))})

    def with_nodes(self, nodes: Sequence[Node]) -> SSHMachine:
        """Return the same machine, standing for another node."""
        return replace(self, nodes=tuple(nodes))

    def facts(self) -> HostFacts:
        """Ask the host for its present facts."""
        return gather_facts(self._connection)

    @property
    def _connection(self) -> SSHConnection:
        return pool.named(self.host)


async def in_thread(function: Callable[..., T], *args: Any) -> T:
    """Call a function that blocks, and wait for it."""
    return await asyncio.wrap_future(submit(function, *args))


def submit(function: Callable[..., T], *args: Any) -> Future[T]:
    """Begin to call a function that blocks."""
    return _threads.submit(function, *args)
