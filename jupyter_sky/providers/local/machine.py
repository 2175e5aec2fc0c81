"""An agent on this computer, as a machine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import stat
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from jupyter_sky.providers.base import AgentGone, Node
from jupyter_sky.providers.local.computer import boot, is_this
from jupyter_sky.transport.bridge import NOT_OURS, is_trusted


@dataclass(frozen=True)
class LocalMachine:
    """An agent on this computer, standing for one or more nodes.

    Attributes
    ----------
    folder, blobs
        The agent's folder, and that of its blobs.
    pid
        Its process id; 0 if it did not start.
    nodes
        The nodes that it stands for.
    computer, booted
        The computer: several can share a home folder, and with it the registry. Its name can
        change, but not what `computer.boot` says.
    shares_files
        Whether its ranks import the user's own modules from their original place.
    """

    folder: Path
    blobs: Path
    pid: int
    nodes: tuple[Node, ...]
    computer: str = field(default_factory=socket.gethostname)
    booted: str | None = field(default_factory=boot)
    shares_files: bool = True
    is_answering = False  # it answers at once, or not at all

    @property
    def blobs_here(self) -> Path | None:
        """The folder of its blobs, if it is on this computer and belongs to this user."""
        with contextlib.suppress(OSError):
            found = self.blobs.lstat()
            is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
            if is_own and is_this(self.computer, self.booted):
                return self.blobs
        return None

    async def open(self) -> socket.socket:
        """Connect to the agent's socket."""
        sock = socket.socket(socket.AF_UNIX)
        sock.setblocking(False)
        try:
            # It does not wait. asyncio takes a socket for connected that has to try again later.
            sock.connect(str(self.folder / "agent.sock"))
        except (FileNotFoundError, ConnectionRefusedError) as error:
            sock.close()
            raise AgentGone(f"{error.strerror}") from None
        except BlockingIOError:
            sock.close()
            raise OSError("its agent accepts no connection: too many are waiting") from None
        except BaseException:
            sock.close()
            raise
        if not is_trusted(sock):
            sock.close()
            raise AgentGone(NOT_OURS)
        return sock

    async def remove(self) -> None:
        """Kill an agent that no longer answers, and remove its files."""
        await asyncio.to_thread(self.remove_now)

    def remove_now(self) -> None:
        """Do what `remove` does, outside an event loop."""
        if _is_agent(self.pid, self.folder):
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)
        shutil.rmtree(self.blobs, ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def row(self) -> dict[str, Any]:
        """Return the data with which to find the agent."""
        return {
            "folder": str(self.folder),
            "blobs": str(self.blobs),
            "pid": self.pid,
            "computer": self.computer,
            "booted": self.booted,
            "shares_files": self.shares_files,
            "nodes": [node.message() for node in self.nodes],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> LocalMachine:
        """Return the machine that `row` described."""
        return cls(
            Path(row["folder"]),
            Path(row["blobs"]),
            row["pid"],
            tuple(map(Node.from_message, row["nodes"])),
            row["computer"],
            row.get("booted"),
            row.get("shares_files", True),
        )

    def with_nodes(self, nodes: Sequence[Node]) -> LocalMachine:
        """Return the same agent, standing for other nodes."""
        return replace(self, nodes=tuple(nodes))


def _is_agent(pid: int, folder: Path) -> bool:
    # Another process may have got the id.
    with contextlib.suppress(OSError):
        return str(folder).encode() in Path(f"/proc/{pid}/cmdline").read_bytes()
    return False
