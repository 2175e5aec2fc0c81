"""The batch script of a cluster: one job, which starts an agent on each of its nodes."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import jupyter_sky
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import ClusterSpec


def job_options(
    spec: ClusterSpec, identity: str, folder: Path, settings: Sequence[tuple[str, str | None]]
) -> list[str]:
    """Return the options of the job, as sbatch takes them."""
    options = [
        f"--job-name=sky-{spec.name}",
        f"--comment=jupyter_sky:{identity}",
        f"--nodes={spec.nodes}",
        "--ntasks-per-node=1",
        f"--output={folder / 'output.txt'}",
        # A job that is queued again after a failure would start agents that nobody waits for.
        "--no-requeue",
    ]
    if spec.cpus is not None:
        options.append(f"--cpus-per-task={_whole('cpus', spec.cpus)}")
    if spec.memory is not None:
        options.append(f"--mem={_whole('memory', spec.memory)}G")
    if wanted := spec.wanted_gpus:
        options.append(f"--gres=gpu:{wanted.name.lower()}:{wanted.count}")
    return options + [f"--{name}={value}" for name, value in settings if value]


def batch_script(options: Sequence[str], folder: Path) -> str:
    """Return the script."""
    code = Path(jupyter_sky.__file__).parents[1]
    start = [sys.executable, "-P", "-m", "jupyter_sky.providers.slurm.on_node", str(folder)]
    asked = "\n".join(f"#SBATCH {shlex.quote(option)}" for option in options)
    return f"""#!/bin/bash
{asked}

# A cluster of jupyter_sky: the agent of each node ends the job when it ends.
export PYTHONPATH={shlex.quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}
srun --kill-on-bad-exit=1 ${{SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}} \\
    {shlex.join(start)}
rm -rf {shlex.quote(str(folder))}
"""


def _whole(name: str, amount: object) -> int:
    number = float(str(amount).rstrip("+"))
    if number != int(number):
        raise UsageError(f"--{name} {amount} is no whole number: Slurm takes whole ones.")
    return int(number)
