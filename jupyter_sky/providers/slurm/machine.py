"""A node of a job with an agent, as a machine: it is reached through a step of the job."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jupyter_sky
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.base import AgentGone, MachineGone, Node
from jupyter_sky.providers.slurm.commands import SlurmError, cancel, job_state, own_environment
from jupyter_sky.transport.bridge import MARK, NO_AGENT


@dataclass(frozen=True)
class SlurmMachine:
    """A node of a job, with an agent.

    Attributes
    ----------
    job
        The number of the job.
    host
        What Slurm calls the node.
    folder
        The agent's folder there.
    nodes
        The one node.
    """

    job: int
    host: str
    folder: str
    nodes: tuple[Node, ...]
    shares_files = True
    blobs_here = None

    async def open(self) -> socket.socket:
        """Connect to the agent, over a bridge that Slurm lets in as the user's own."""
        return await self._bridge(f"{self.folder}/agent.sock")

    async def connect(self, addr: str, port: int) -> socket.socket:
        """Connect to an address from the node."""
        return await self._bridge(addr, str(port))

    async def _bridge(self, *to: str) -> socket.socket:
        try:
            return await asyncio.to_thread(self._start_bridge, to)
        except AgentGone:
            raise
        except OSError:
            try:
                there = await job_state(self.job)
            except SlurmError as error:
                raise OSError(str(error)) from None
            if there.has_ended:
                raise MachineGone(f"job {self.job} has ended ({there.state})") from None
            raise

    def _start_bridge(self, to: Sequence[str]) -> socket.socket:
        code = Path(jupyter_sky.__file__).parents[1]
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as wrong:
            step = ["srun", f"--jobid={self.job}", "--overlap", f"--nodelist={self.host}"]
            step += ["--nodes=1", "--ntasks=1", "--mem=0", "--gres=none", "--unbuffered", "--quiet"]
            process = subprocess.Popen(
                [*step, sys.executable, "-P", "-m", "jupyter_sky.node.bridge", *to],
                env={**own_environment(), "PYTHONPATH": str(code)},
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=wrong.fileno(),
                start_new_session=True,
            )
            theirs.close()
            threading.Thread(target=process.wait, daemon=True, name="sky-bridge").start()
            seen = b""
            while seen != MARK and (byte := ours.recv(1)):
                seen += byte
            if seen == MARK:
                ours.setblocking(False)
                return ours
            ours.close()
            status = process.wait()
            wrong.seek(0)
            said = last_line(wrong.read().decode(errors="replace"))
        if status == NO_AGENT:
            raise AgentGone("the agent is gone")
        raise OSError(f"{self.host}: {said}")

    async def remove(self) -> None:
        """End the job, and with it the agents of all its nodes and their files."""
        await cancel(self.job)

    def row(self) -> dict[str, Any]:
        """Return where the agent is."""
        return {
            "job": self.job,
            "host": self.host,
            "folder": self.folder,
            "nodes": [node.message() for node in self.nodes],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that `row` described."""
        return cls(**{**row, "nodes": tuple(map(Node.from_message, row["nodes"]))})

    def with_nodes(self, nodes: Sequence[Node]) -> SlurmMachine:
        """Return the same machine, standing for another node."""
        return replace(self, nodes=tuple(nodes))
