"""What srun runs on each node of a job: ``python -m jupyter_sky.providers.slurm.on_node FOLDER``.

It starts the agent and stays as long as that: what a task of Slurm's leaves behind is killed when
the task ends. When Slurm ends the job, it ends the agent.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.errors import SkyError
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.local.agent import start_agent
from jupyter_sky.providers.node_defaults import SHARED_MEMORY, blob_folder
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, RankSpec


def main(job: Path) -> None:
    """Start the agent of this node, and wait until it has ended."""
    number = int(os.environ["SLURM_PROCID"])
    spec = AgentSpec.from_json((job / f"spec-{number}.json").read_text())
    folder = of_the_user() / f"{spec.id}-{number}"
    free = shutil.disk_usage(SHARED_MEMORY).free if SHARED_MEMORY.is_dir() else 0
    blobs = Path(blob_folder(str(folder), free))
    signal.signal(signal.SIGTERM, _leave)
    try:
        folder.mkdir(mode=0o700)
        blobs.mkdir(mode=0o700)
        here = replace(
            spec,
            socket=str(folder / "agent.sock"),
            blobs=str(blobs),
            ranks=tuple(_with_gpus(spec.ranks)),
            peer=_another_node(number),
        )
        try:
            started: dict[str, Any] = {**start_agent(folder, here)}
        except SkyError as error:
            _write(job / f"failed-{number}", str(error))
            raise
        try:
            started |= {"folder": str(folder), "blobs": str(blobs)}
            started["host"] = os.environ["SLURMD_NODENAME"]
            _write(job / f"ready-{number}", json.dumps(started))
            _wait(started["pid"])
        finally:
            _end(started["pid"])
    finally:
        shutil.rmtree(blobs, ignore_errors=True)
        shutil.rmtree(folder, ignore_errors=True)


def _leave(*_: object) -> None:
    sys.exit(0)


def _wait(pid: int) -> None:
    try:
        psutil.Process(pid).wait()
    except psutil.NoSuchProcess:
        return


def _end(pid: int) -> None:
    """Kill the agent if it is left; its ranks end with it."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
    _wait(pid)


def _with_gpus(ranks: tuple[RankSpec, ...]) -> list[RankSpec]:
    """Share the GPUs that Slurm gave to the job here out among the ranks."""
    given = [each for each in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if each]
    if not given:
        return list(ranks)
    return [
        RankSpec(each.rank, {"CUDA_VISIBLE_DEVICES": given[index % len(given)]})
        for index, each in enumerate(ranks)
    ]


def _another_node(number: int) -> str | None:
    """Return the address of another node, by which the agent chooses its own."""
    names = _said(["scontrol", "show", "hostnames", os.environ["SLURM_STEP_NODELIST"]]).split()
    if len(names) == 1:
        return None
    fields = _said(["scontrol", "--oneliner", "show", "node", names[number == 0]]).split()
    address = next(each for each in fields if each.startswith("NodeAddr=")).partition("=")[2]
    return socket.gethostbyname(address)


def _said(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def _write(path: Path, text: str) -> None:
    """Write a file that is there only when it is whole."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


if __name__ == "__main__":
    os.umask(0o077)
    main(Path(sys.argv[1]))
