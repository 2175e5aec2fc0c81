"""Where to run Slurm's commands: on this computer, or on a login node over SSH."""

from __future__ import annotations

import asyncio
import os
import shlex
import socket
import subprocess
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import last_line
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.errors import CommandError
from jupyter_sky.providers.ssh.machine import in_thread
from jupyter_sky.transport.bridge import MARK, NO_AGENT
from jupyter_sky.transport.tasks import shielded

# Variables of Slurm's commands: of the job that a process is in, and how the user has them print,
# select and ask. What jobs of the user get by default stays.
_VARIABLES = ("SLURM", "SBATCH", "SRUN", "SQUEUE", "SCANCEL", "SINFO", "SCONTROL")
_DEFAULTS = ("ACCOUNT", "CONSTRAINT", "PARTITION", "QOS", "TIMELIMIT")
_KEPT = ("SLURM_CONF", "SLURM_CONF_SERVER", *(f"SBATCH_{name}" for name in _DEFAULTS))

# Sites with Slurm in a separate folder only set its path in login shells.
FIND = f"""\
command -v {{0}} >/dev/null || . /etc/profile >/dev/null 2>&1
unset $(env | sed -nE 's/^(({"|".join(_VARIABLES)})_[A-Z0-9_]*)=.*/\\1/p' |
    grep -vxE '{"|".join(_KEPT)}') || :"""
"""Lets a shell find a command, with the variables of `own_environment`."""

_NOT_THERE = "is not there"
_BELONGS_NOWHERE = "Could not establish a configuration source"
_IS_FULL = ("No space left on device", "Disk quota exceeded")
_NOT_OF_SLURM = ("sh", "rm")

_BRIDGE_WITHIN = 30.0  # seconds for a step to begin on a node that may hang
_STOP_WITHIN = 5.0  # seconds for a command to end its step

NODES_EACH = 6
"""How many nodes share an SSH connection: what leads to each is a session, and it takes ten."""


class SlurmError(SkyError):
    """A Slurm command failed; the message is its own."""


class LoginNode(Protocol):
    """A computer with Slurm's commands, and with the home that nodes share.

    Attributes
    ----------
    host
        The host as typed; empty for this computer.
    """

    @property
    def host(self) -> str: ...

    async def ask(self, command: Sequence[str], data: bytes | None = None) -> str:
        """Run a command and return its output; ``data`` is its input.

        It continues if the caller is cancelled: otherwise the number of a submitted job could be
        lost.

        Raises
        ------
        UsageError
            If the command does not exist.
        SlurmError
            If it fails, with its message, or the login node cannot be reached.
        """

    def is_answering(self, node: int) -> bool:
        """Return whether it has just said something over the connection for bridges to a node."""

    def open_bridge(self, command: Sequence[str], code: str, node: int) -> socket.socket:
        """Start a bridge, and return a socket connected to its other end; this blocks.

        Parameters
        ----------
        command
            Runs ``jupyter_sky.node.bridge``.
        code
            The folder of our package.
        node
            The number of the node to connect to.

        Raises
        ------
        AgentGone
            If its target has ended.
        OSError
            If it cannot be reached now.
        """


def login_node(host: str | None) -> LoginNode:
    """Return the login node that was typed; this computer if none was."""
    return _OverSSH(host) if host else _Here()


def own_environment() -> dict[str, str]:
    """Return the environment without variables that change what Slurm's commands do and print."""
    return {
        name: value
        for name, value in os.environ.items()
        if name in _KEPT or name.partition("_")[0] not in _VARIABLES
    }


@dataclass(frozen=True)
class _Here:
    """This computer."""

    host = ""

    async def ask(self, command: Sequence[str], data: bytes | None = None) -> str:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                env=own_environment(),
                stdin=asyncio.subprocess.DEVNULL if data is None else asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                # Or Stop and Ctrl-C, which reach a process group, would lose what it answers.
                start_new_session=True,
            )
        except FileNotFoundError:
            raise UsageError(missing(command[0])) from None
        communicating = asyncio.ensure_future(process.communicate(data))
        said, wrong = await shielded(communicating)
        if process.returncode:
            raise _failure(command[0], wrong.decode(errors="replace"), "Slurm")
        return said.decode(errors="replace").strip()

    def is_answering(self, node: int) -> bool:
        return False

    def open_bridge(self, command: Sequence[str], code: str, node: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        with tempfile.TemporaryFile() as wrong:
            process = subprocess.Popen(
                command,
                env={**own_environment(), "PYTHONPATH": code},
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=wrong.fileno(),
                start_new_session=True,
            )
            theirs.close()
            threading.Thread(target=process.wait, daemon=True, name="sky-bridge").start()
            ours.settimeout(_BRIDGE_WITHIN)
            seen = b""
            try:
                while seen != MARK and (byte := ours.recv(1)):
                    seen += byte
            except TimeoutError:
                ours.close()
                _stop(process)
                raise OSError("the node does not answer") from None
            if seen == MARK:
                ours.setblocking(False)
                return ours
            ours.close()
            status = process.wait()
            wrong.seek(0)
            said = last_line(wrong.read().decode(errors="replace"))
        if status == NO_AGENT:
            raise AgentGone("the agent is gone")
        raise OSError(said)


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a command of Slurm's, which ends its step if it still can."""
    process.terminate()
    try:
        process.wait(_STOP_WITHIN)
    except subprocess.TimeoutExpired:
        process.kill()


@dataclass(frozen=True)
class _OverSSH:
    """A login node, over a connection of the SSH provider."""

    host: str

    async def ask(self, command: Sequence[str], data: bytes | None = None) -> str:
        name = command[0]
        check = f"command -v {name} >/dev/null || {{ echo {name} {_NOT_THERE}; exit 1; }}"
        run = shlex.join(command) + ("" if data is not None else " </dev/null")
        script = "\n".join([FIND.format(name), check, run])
        try:
            asked = in_thread(pool.named(self.host).run, script, data)
            return (await shielded(asyncio.ensure_future(asked))).strip()
        except CommandError as error:
            if str(error) == f"{name} {_NOT_THERE}":
                raise UsageError(
                    f"{name} is not at {self.host}: name a login node of the Slurm cluster with "
                    "`--login HOST`."
                ) from None
            raise _failure(name, str(error), f"Slurm at {self.host}") from None
        except UsageError:
            raise
        except SkyError as error:
            raise SlurmError(f"the login node {self.host} cannot be reached: {error}") from None

    def is_answering(self, node: int) -> bool:
        return pool.named(self.host, part=node // NODES_EACH).is_answering

    def open_bridge(self, command: Sequence[str], code: str, node: int) -> socket.socket:
        run = f"PYTHONPATH={shlex.quote(code)} exec {shlex.join(command)}"
        script = f"{FIND.format(command[0])}\n{run}"
        connection = pool.named(self.host, part=node // NODES_EACH)
        try:
            return connection.open_bridge(shlex.join(["sh", "-c", script]))
        except SkyError as error:
            raise OSError(f"{self.host}: {error}") from None


def rows(said: str, columns: int) -> list[list[str]]:
    """Return the lines of a table of Slurm's, without what a site lets its commands print besides.

    The last column may have separators in it.
    """
    lines = [line.split("|", columns - 1) for line in said.splitlines()]
    return [line for line in lines if len(line) == columns]


def missing(command: str) -> str:
    """Return advice if a Slurm command is not on this computer."""
    return (
        f"{command} is not here: run the notebook on a login node of the Slurm cluster, or name "
        "one that SSH leads to with `--login HOST`."
    )


def _failure(command: str, said: str, slurm: str) -> SlurmError:
    """Return the error for a failed command, with its message."""
    if any(each in said for each in _IS_FULL):
        return SlurmError(
            "the home that nodes share is full, or your quota in it: make room, and run this again."
        )
    if _BELONGS_NOWHERE in said:
        return SlurmError(
            "Slurm's commands are installed, but belong to no Slurm cluster (there is no "
            "slurm.conf): use a login node, as with `--login HOST`, or set SLURM_CONF."
        )
    lines = [line.removeprefix(f"{command}: ") for line in said.splitlines()]
    words = "; ".join(line.removeprefix("error: ") for line in lines)
    return SlurmError(words if command in _NOT_OF_SLURM else f"{slurm} says: {words}")
