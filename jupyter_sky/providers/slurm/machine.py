"""A node of a job with an agent, as a machine: it is reached through a step of the job."""

from __future__ import annotations

import contextlib
import shlex
import socket
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from jupyter_sky.providers.base import AgentGone, MachineGone, Node, Suspended
from jupyter_sky.providers.slurm.job_state import SUSPENDED
from jupyter_sky.providers.slurm.jobs import job_now, known_end, number_of
from jupyter_sky.providers.slurm.login import SlurmError, login_node
from jupyter_sky.providers.slurm.script import JobRequest, step_beside
from jupyter_sky.providers.ssh.machine import in_thread

_FLAGS = "*~#!%$@^-+"  # flags after the state of a node

_END_WITHIN = "10s"  # seconds for an agent that no longer answers


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
        The process there that waits for the agent's end and cleans up.
    nodes
        The one node.
    login
        The login node, as typed; empty for this computer.
    python, code
        For the bridge: the interpreter, and the folder of our package.
    request
        The user's wishes for the job.
    has_own_home
        Whether it does not share the login node's home.
    """

    id: str
    host: str
    folder: str
    keeper: int
    nodes: tuple[Node, ...]
    python: str
    code: str
    login: str
    request: JobRequest
    has_own_home: bool = False
    blobs_here = None

    @property
    def shares_files(self) -> bool:
        """Whether it shares files with the notebook's computer."""
        return not self.login and not self.has_own_home

    @property
    def is_step(self) -> bool:
        """Whether it is a node of the job that a notebook ran in."""
        return "." in self.id

    @property
    def is_answering(self) -> bool:
        """Whether the login node has said something in the last moments; this computer has not."""
        return login_node(self.login).is_answering(self.nodes[0].node)

    async def open(self) -> socket.socket:
        """Connect to the agent, over a bridge that runs as a step of the user's job."""
        to = f"{self.folder}/agent.sock"
        command = [*self._step(), self.python, "-P", "-m", "jupyter_sky.node.bridge", to]
        at, number = login_node(self.login), self.nodes[0].node
        if gone := known_end(self.login, self.id):
            # Another node's connection has just found out.
            raise MachineGone(gone)
        try:
            # Not in a thread of the loop's own, which are few, and which the registry needs.
            return await in_thread(at.open_bridge, command, self.code, number)
        except AgentGone:
            raise
        except OSError as error:
            try:
                gone = await self._why_gone()
                job = await job_now(at, number_of(self.id))
            except SlurmError as unknown:
                raise OSError(str(unknown)) from None
            if gone:
                raise MachineGone(gone) from None
            if job.state.state == SUSPENDED:
                raise Suspended(
                    f"Slurm has suspended job {job.job}: its run goes on when Slurm resumes it"
                ) from None
            raise OSError(f"{self.host}: {error}") from None

    async def _why_gone(self) -> str:
        """Return why the node no longer belongs to the job; empty if it does."""
        at = login_node(self.login)
        there = await job_now(at, self.id)
        if there.state.has_ended:
            return there.end
        # A job that ends loses its nodes one by one.
        if there.state.is_ending or self.host in there.hosts:
            return ""
        said = await at.ask(["sinfo", "--noheader", f"--nodes={self.host}", "--format=%T|%E"])
        state, reason = said.splitlines()[0].split("|", 1)
        why = "" if reason == "none" else f": {reason}"
        return f"it was taken out of job {self.id}; Slurm says it is {state.rstrip(_FLAGS)}{why}"

    def _step(self) -> list[str]:
        return step_beside(self.id, self.host)

    async def remove(self) -> None:
        """Do nothing: the rest is removed when the provider ends the job or releases the node."""

    async def end_agent(self) -> None:
        """End the agent, whatever its state, and remove its files, if the node is still there."""
        folder = shlex.quote(self.folder)
        wait = f"while test -d {folder}; do sleep 0.1; done"
        end = f"test -d {folder} && kill -INT {self.keeper} && {wait}"
        with contextlib.suppress(SlurmError):
            await login_node(self.login).ask(
                [*self._step(), "timeout", _END_WITHIN, "sh", "-c", end]
            )

    def row(self) -> dict[str, Any]:
        """Return the data with which to find the agent."""
        return {
            "id": self.id,
            "host": self.host,
            "folder": self.folder,
            "keeper": self.keeper,
            "python": self.python,
            "code": self.code,
            "login": self.login,
            "request": asdict(self.request),
            "has_own_home": self.has_own_home,
            "nodes": [node.message() for node in self.nodes],
        }

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that `row` described."""
        nodes = tuple(map(Node.from_message, row["nodes"]))
        return cls(**{**row, "nodes": nodes, "request": JobRequest.from_row(row["request"])})

    def with_nodes(self, nodes: Sequence[Node]) -> SlurmMachine:
        """Return the same machine, standing for another node."""
        return replace(self, nodes=tuple(nodes))
