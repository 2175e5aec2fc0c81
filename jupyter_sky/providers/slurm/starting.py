"""Starting agents through Slurm: as a job of their own, or as a step of the notebook's job.

What agents have to know is in a folder of the shared home, for this user alone, and gone when they
have read it. There they write that they listen.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.base import Node, Progress, RunningCluster
from jupyter_sky.providers.local.variables import rank_variables
from jupyter_sky.providers.mtls import Credentials
from jupyter_sky.providers.slurm.commands import (
    SlurmError,
    ask,
    cancel,
    job_state,
    own_environment,
)
from jupyter_sky.providers.slurm.machine import SlurmMachine
from jupyter_sky.providers.slurm.queue import mark, queued_jobs
from jupyter_sky.providers.slurm.reasons import check_can_start, in_words
from jupyter_sky.providers.slurm.script import OUTPUT, batch_script, python_path, step_command
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec

_LOOK_EVERY = 0.3  # seconds, for what nodes write
_ASK_EVERY = 3.0  # seconds, for what the queue says: its controller serves everybody


async def start_agents(
    cluster: RunningCluster,
    nodes: Sequence[Node],
    credentials: Sequence[Credentials | None],
    grace: float,
    place: str | Sequence[str],
    progress: Progress,
) -> list[SlurmMachine]:
    """Start an agent for each of some nodes: all of them or none.

    Parameters
    ----------
    nodes
        Nodes without an address.
    credentials
        What each shows to others; ``None`` for one that is alone.
    grace
        Seconds as in `AgentSpec`.
    place
        The number of the job to start them in; or options of sbatch, quoted, for another one.
    """
    (home() / "slurm").mkdir(mode=0o700, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f"{cluster.identity}-", dir=home() / "slurm"))
    name = mark(cluster.identity, cluster.spec.name, folder.name)
    job = None
    try:
        for number, (node, shown) in enumerate(zip(nodes, credentials, strict=True)):
            text = _agent_spec(cluster, node, shown, grace).to_json()
            _write_private(folder / f"spec-{number}.json", text)
        if isinstance(place, str):
            job = await _start_step(place, len(nodes), name, folder)
        else:
            job = await _submit([*place, f"--comment={name}"], folder)
        return await _await_agents(job, folder, nodes, progress)
    except BaseException:
        if job is not None:
            await cancel(job)
        raise
    finally:
        # Keys were in it, which the agents have by now.
        shutil.rmtree(folder, ignore_errors=True)


def _agent_spec(
    cluster: RunningCluster, node: Node, credentials: Credentials | None, grace: float
) -> AgentSpec:
    spec = cluster.spec
    there = cluster.machines[0] if cluster.machines else None
    return AgentSpec(
        cluster=spec.name,
        id=cluster.identity,
        socket="",
        blobs="",
        ranks=tuple(RankSpec(rank) for rank in node.ranks),
        peer=there.host if isinstance(there, SlurmMachine) else None,
        credentials=asdict(credentials) if credentials else None,
        grace=grace,
        idle_timeout=spec.idle_timeout,
        unattended=spec.unattended,
        preload=tuple(cluster.preload),
        cwd=str(Path.cwd()),
        sys_path=tuple(path or str(Path.cwd()) for path in sys.path),
        python_path=os.environ.get("PYTHONPATH"),
        env=rank_variables(spec.image, len(node.ranks)),
        notices="file",
    )


async def _submit(options: Sequence[str], folder: Path) -> str:
    """Submit a job, and return its number."""
    _write_private(folder / "job.sh", batch_script(options, folder))
    asked = asyncio.ensure_future(ask(["sbatch", "--parsable", str(folder / "job.sh")]))
    try:
        return _number(await asyncio.shield(asked))
    except asyncio.CancelledError:
        await cancel(_number(await asked))
        raise


def _number(said: str) -> str:
    return said.splitlines()[-1].partition(";")[0]


async def _start_step(job: str, nodes: int, name: str, folder: Path) -> str:
    """Start a step of a job, which goes on when this process ends, and return its id."""
    output = folder / OUTPUT
    with output.open("wb") as file:
        process = subprocess.Popen(
            step_command(job, nodes, name, folder),
            env={**own_environment(), "PYTHONPATH": python_path()},
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    threading.Thread(target=process.wait, daemon=True, name="sky-step").start()
    try:
        while process.returncode is None:
            for each in await queued_jobs():
                if each.start == folder.name:
                    return each.id
            await asyncio.sleep(_LOOK_EVERY)
    except BaseException:
        process.terminate()
        raise
    raise SlurmError(f"no step of job {job} could be started{_output(folder)}")


async def _await_agents(
    job: str, folder: Path, nodes: Sequence[Node], progress: Progress
) -> list[SlurmMachine]:
    """Wait without an end: how long a queue takes is for the user to judge."""
    loop = asyncio.get_running_loop()
    ask_at, reason = loop.time(), ""
    while True:
        ended = None
        if loop.time() >= ask_at:
            try:
                there = await job_state(job)
                progress(in_words(job, there))
                if there.reason == reason:  # the first one is a guess
                    check_can_start(job, there)
                reason = there.reason
                ended = there if there.has_ended else None
            except SlurmError as error:
                progress(f"job {job}: {error}, asking again")
            ask_at = loop.time() + _ASK_EVERY
        # After the queue was asked: what a job has written before it ended is not missed.
        for number, node in enumerate(nodes):
            failed = folder / f"failed-{number}"
            if failed.exists():
                raise SkyError(f"job {job}, node {node.node}: {failed.read_text()}")
        if all((folder / f"ready-{number}").exists() for number in range(len(nodes))):
            return [_machine(job, folder, *each) for each in enumerate(nodes)]
        if ended:
            raise SkyError(
                f"job {job} ended before its nodes were ready: {ended.state}{_output(folder)}"
            )
        await asyncio.sleep(_LOOK_EVERY)


def _machine(job: str, folder: Path, number: int, node: Node) -> SlurmMachine:
    started = json.loads((folder / f"ready-{number}").read_text())
    known = {name: started[name] for name in ("addr", "interface", "port", "fingerprint")}
    here = replace(node, name=started["host"], **known)
    return SlurmMachine(job, started["host"], started["folder"], started["keeper"], (here,))


def _output(folder: Path) -> str:
    """Return the last line that was printed, if something could write into the shared home."""
    try:
        lines = (folder / OUTPUT).read_text(errors="replace").split("\n")
    except FileNotFoundError:
        return f" (it wrote nothing into {folder}: homes have to be shared with the nodes)"
    last = next((line for line in reversed(lines) if line.strip()), "")
    return f", {last}" if last else ""


def _write_private(path: Path, text: str) -> None:
    with open(path, "w", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(text)
