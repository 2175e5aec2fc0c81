"""The Slurm provider: one job a cluster, with an agent on each of its nodes."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.paths import home
from jupyter_sky.providers.base import Machine, Node, Progress
from jupyter_sky.providers.local.requirements import differences
from jupyter_sky.providers.local.variables import rank_variables
from jupyter_sky.providers.mtls import Credentials, issue_credentials
from jupyter_sky.providers.slurm.commands import SlurmError, ask, cancel, job_state
from jupyter_sky.providers.slurm.machine import SlurmMachine
from jupyter_sky.providers.slurm.reasons import check_can_start, in_words
from jupyter_sky.providers.slurm.script import batch_script, job_options
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec

_LOOK_EVERY = 0.3  # seconds, for what nodes write
_ASK_EVERY = 3.0  # seconds, for what the queue says: its controller serves everybody


@dataclass(frozen=True)
class Slurm:
    """Nodes of a Slurm cluster, of which this computer is a login node.

    Parameters
    ----------
    partition, account, qos, time, constraint
        As sbatch takes them; Slurm's own defaults where they are left out.
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    """

    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    grace: float = 600.0

    name = "slurm"
    default_nodes = 1
    python = sys.executable
    """What runs on the nodes: the notebook's own environment, from the shared home."""

    def check(self, spec: ClusterSpec, preload: Sequence[str]) -> tuple[str, ...]:
        """Refuse what is not here: Slurm's commands."""
        for command in ("sbatch", "srun", "squeue", "scancel"):
            if shutil.which(command) is None:
                raise UsageError(
                    f"{command} is not here: run the notebook on a login node of the Slurm cluster."
                )
        if spec.volumes or spec.image.bootstrap or spec.image.apt:
            raise UsageError("nodes of Slurm take neither volumes nor apt nor bootstrap commands.")
        return differences(spec.image)

    async def launch(
        self, spec: ClusterSpec, identity: str, preload: Sequence[str], progress: Progress
    ) -> list[Machine]:
        """Submit the job, and wait in the queue until the agents of all its nodes listen."""
        folder = home() / "slurm" / identity
        folder.parent.mkdir(mode=0o700, exist_ok=True)
        folder.mkdir(mode=0o700)
        job = None
        try:
            nodes = self._write(folder, spec, identity, preload)
            submitted = asyncio.ensure_future(self._submit(folder))
            try:
                job = await asyncio.shield(submitted)
            except asyncio.CancelledError:
                job = await submitted
                raise
            return await self._await_agents(job, folder, nodes, progress)
        except BaseException:
            if job is not None:
                await cancel(job)
            raise
        finally:
            # Keys were in it, which the agents have by now.
            shutil.rmtree(folder, ignore_errors=True)

    def machine(self, row: Mapping[str, Any]) -> SlurmMachine:
        """Return the machine that ``row`` describes."""
        return SlurmMachine.from_row(row)

    # The job

    def _write(
        self, folder: Path, spec: ClusterSpec, identity: str, preload: Sequence[str]
    ) -> list[Node]:
        """Write the script and what each agent is to be, and return the nodes."""
        gpus = spec.wanted_gpus
        each = spec.procs_per_node or (gpus.count if gpus else 1)
        names = [f"node {number}" for number in range(spec.nodes)]
        shown: Sequence[Credentials | None] = issue_credentials(names) if spec.nodes > 1 else [None]
        nodes = []
        for number, own in enumerate(shown):
            ranks = tuple(range(number * each, (number + 1) * each))
            count = gpus.count if gpus else 0
            shared = bool(gpus) and count < each
            name = gpus.name if gpus else None
            nodes.append(Node(number, "", "", ranks, count, shared, name))
            wanted = AgentSpec(
                cluster=spec.name,
                id=identity,
                socket="",
                blobs="",
                ranks=tuple(RankSpec(rank) for rank in ranks),
                credentials=asdict(own) if own else None,
                grace=self.grace,
                idle_timeout=spec.idle_timeout,
                unattended=spec.unattended,
                preload=tuple(preload),
                cwd=str(Path.cwd()),
                sys_path=tuple(path or str(Path.cwd()) for path in sys.path),
                python_path=os.environ.get("PYTHONPATH"),
                env=rank_variables(spec.image, each),
            )
            _write_private(folder / f"spec-{number}.json", wanted.to_json())
        settings = ("partition", "account", "qos", "time", "constraint")
        chosen = [(name, getattr(self, name)) for name in settings]
        options = job_options(spec, identity, folder, chosen)
        _write_private(folder / "job.sh", batch_script(options, folder))
        return nodes

    async def _submit(self, folder: Path) -> int:
        said = await ask(["sbatch", "--parsable", str(folder / "job.sh")])
        return int(said.splitlines()[-1].partition(";")[0])

    async def _await_agents(
        self, job: int, folder: Path, nodes: Sequence[Node], progress: Progress
    ) -> list[Machine]:
        """Wait without an end: how long a queue takes is for the user to judge."""
        loop = asyncio.get_running_loop()
        ask_at = loop.time()
        while True:
            ended = None
            if loop.time() >= ask_at:
                try:
                    there = await job_state(job)
                    progress(in_words(job, there))
                    check_can_start(job, there)
                    ended = there if there.has_ended else None
                except SlurmError as error:
                    progress(f"job {job}: {error}, asking again")
                ask_at = loop.time() + _ASK_EVERY
            # After the queue was asked: what a job has written before it ended is not missed.
            for failed in folder.glob("failed-*"):
                if failed.suffix != ".part":
                    raise SkyError(f"job {job}: {failed.read_text()}")
            if all((folder / f"ready-{node.node}").exists() for node in nodes):
                return [_machine(job, folder, node) for node in nodes]
            if ended:
                raise SkyError(
                    f"job {job} ended before its nodes were ready: {ended.state}{_output(folder)}"
                )
            await asyncio.sleep(_LOOK_EVERY)


def _machine(job: int, folder: Path, node: Node) -> SlurmMachine:
    started = json.loads((folder / f"ready-{node.node}").read_text())
    known = {name: started[name] for name in ("addr", "interface", "port", "fingerprint")}
    here = replace(node, name=started["host"], **known)
    return SlurmMachine(job, started["host"], started["folder"], (here,))


def _output(folder: Path) -> str:
    """Return the last line that the job has printed, if it could write into the shared home."""
    try:
        lines = (folder / "output.txt").read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return f" (it wrote nothing into {folder}: homes have to be shared with the nodes)"
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f", {last}" if last else ""


def _write_private(path: Path, text: str) -> None:
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
