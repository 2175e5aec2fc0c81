"""A node of a job with an agent, as a machine: it is reached through a step of the job."""

from __future__ import annotations

import asyncio
import contextlib
import shlex
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
from jupyter_sky.providers.slurm.commands import (
    SlurmError,
    ask,
    hosts_of,
    job_state,
    number_of,
    own_environment,
)
from jupyter_sky.transport.bridge import MARK, NO_AGENT

_FLAGS = "*~#!%$@^-+"  # behind the state of a node

_END_WITHIN = "10s"  # for an agent that does not answer any more


@dataclass(frozen=True)
class SlurmMachine:
    """A node of a job, with an agent.

    Attributes
    ----------
    id
        The job, as ``"12"``, or the step of a job that the agent runs in, as ``"12.3"``.
    host
        What Slurm calls the node.
    folder
        The agent's folder there.
    keeper
        The process there that waits for the agent's end, and cleans up.
    nodes
        The one node.
    options
        Of sbatch, as the user has asked for the job.
    """

    id: str
    host: str
    folder: str
    keeper: int
    nodes: tuple[Node, ...]
    options: tuple[str, ...] = ()
    shares_files = True
    blobs_here = None

    @property
    def is_step(self) -> bool:
        """Whether it is a node of the job that a notebook ran in."""
        return "." in self.id

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
                gone = await self._why_gone()
            except SlurmError as error:
                raise OSError(str(error)) from None
            if gone:
                raise MachineGone(gone) from None
            raise

    def _start_bridge(self, to: Sequence[str]) -> socket.socket:
        code = Path(jupyter_sky.__file__).parents[1]
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as wrong:
            process = subprocess.Popen(
                [*self._step(), sys.executable, "-P", "-m", "jupyter_sky.node.bridge", *to],
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

    async def _why_gone(self) -> str:
        """Return why the node is not one of the job's any more; empty if it is."""
        there = await job_state(self.id)
        if there.has_ended:
            return f"job {self.id} has ended ({there.state})"
        # A job that ends loses its nodes one by one.
        if there.is_ending or self.host in await hosts_of(self.id):
            return ""
        said = await ask(["sinfo", "--noheader", f"--nodes={self.host}", "--format=%T|%E"])
        state, reason = said.splitlines()[0].split("|", 1)
        why = "" if reason == "none" else f": {reason}"
        return f"it was taken out of job {self.id}; Slurm says it is {state.rstrip(_FLAGS)}{why}"

    def _step(self) -> list[str]:
        """Return the command that runs another one on the node, beside all that runs there."""
        where = [f"--jobid={number_of(self.id)}", f"--nodelist={self.host}", "--nodes=1"]
        alone = ["--ntasks=1", "--mem=0", "--gres=none", "--overlap"]
        return ["srun", *where, *alone, "--unbuffered", "--quiet"]

    async def remove(self) -> None:
        """Do nothing: what is left goes when the provider ends the job, or releases the node."""

    async def end_agent(self) -> None:
        """End the agent with its files, whatever state it is in, where the node is still there."""
        folder = shlex.quote(self.folder)
        wait = f"while test -d {folder}; do sleep 0.1; done"
        end = f"test -d {folder} && kill -INT {self.keeper} && {wait}"
        with contextlib.suppress(SlurmError):
            await ask([*self._step(), "timeout", _END_WITHIN, "sh", "-c", end])

    def row(self) -> dict[str, Any]:
        """Return where the agent is."""
        return {
            "id": self.id,
            "host": self.host,
            "folder": self.folder,
            "keeper": self.keeper,
            "options": list(self.options),
            "nodes": [node.message() for node in self.nodes],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that `row` described."""
        nodes = tuple(map(Node.from_message, row["nodes"]))
        return cls(**{**row, "nodes": nodes, "options": tuple(row.get("options", ()))})

    def with_nodes(self, nodes: Sequence[Node]) -> SlurmMachine:
        """Return the same machine, standing for another node."""
        return replace(self, nodes=tuple(nodes))
