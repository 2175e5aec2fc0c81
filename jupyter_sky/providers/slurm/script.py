"""How agents are started on nodes: the batch script of a job, and the command of a step."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import jupyter_sky
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import ClusterSpec

OUTPUT = "output.txt"
"""What the job prints until its agents are there, in the folder of the start."""

# Nodes that are lost are for the cluster to care about: the others go on.
_EACH = ("--no-kill", "--kill-on-bad-exit=0")


def job_options(spec: ClusterSpec, nodes: int, gpus: str | None) -> list[str]:
    """Return the options of sbatch for so many nodes of a cluster, with these GPUs each."""
    options = [
        f"--job-name=sky-{spec.name}",
        f"--nodes={nodes}",
        "--ntasks-per-node=1",
        # A job that is queued again after a failure would start agents that nobody waits for.
        "--no-requeue",
        "--no-kill",
    ]
    if spec.cpus is not None:
        options.append(f"--cpus-per-task={_whole('cpus', spec.cpus)}")
    if spec.memory is not None:
        options.append(f"--mem={_whole('memory', spec.memory)}G")
    if gpus is not None:
        options.append(f"--gres={gpus}")
    return options


def batch_script(options: Sequence[str], folder: Path) -> str:
    """Return the script of a job with these options, quoted, that starts an agent on each node."""
    asked = [*options, shlex.quote(f"--output={folder / OUTPUT}")]
    lines = "\n".join(f"#SBATCH {option}" for option in asked)
    return f"""#!/bin/bash
{lines}

# Nodes of jupyter_sky: each agent goes on until its cluster ends.
export PYTHONPATH={shlex.quote(python_path())}${{PYTHONPATH:+:$PYTHONPATH}}
srun {shlex.join(_EACH)} ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    {shlex.join(_agent(folder))}
"""


def step_command(job: str, nodes: int, name: str, folder: Path) -> list[str]:
    """Return the command that starts an agent on each of so many nodes of a job."""
    size = [f"--nodes={nodes}", f"--ntasks={nodes}", "--ntasks-per-node=1", "--mem=0"]
    step = ["srun", f"--jobid={job}", "--overlap", f"--job-name={name}"]
    return [*step, *size, *_EACH, *_agent(folder)]


def python_path() -> str:
    """Return where nodes import this package from: the shared home."""
    return str(Path(jupyter_sky.__file__).parents[1])


def _agent(folder: Path) -> list[str]:
    return [sys.executable, "-P", "-m", "jupyter_sky.providers.slurm.on_node", str(folder)]


def _whole(name: str, amount: object) -> int:
    number = float(str(amount).rstrip("+"))
    if number != int(number):
        raise UsageError(f"--{name} {amount} is no whole number: Slurm takes whole ones.")
    return int(number)
