"""How agents are started on nodes: the batch script of a job, and the command of a step."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.slurm.environment import NodeEnvironment
from jupyter_sky.providers.slurm.on_node import SPECS
from jupyter_sky.providers.spec import ClusterSpec

OUTPUT = "output.txt"
"""What the job prints until its agents are there, in the folder of the start."""

WAITS = "sky-waits"
"""What the step is called whose nodes wait: the queue tells by it that homes are not shared."""

# Nodes that are lost are for the cluster to care about: the others go on.
_EACH = ("--no-kill", "--kill-on-bad-exit=0")
# While a job is suspended, srun would wait for minutes, and go on to do so when it is resumed.
_BESIDE = ("--mem=0", "--gres=none", "--overlap", "--immediate=10")

# Only login shells know the command where it is a function, as nearly everywhere.
_MODULES = """\
command -v module >/dev/null || . /etc/profile
module load {names} || exit
"""
_CONDA = """\
command -v conda >/dev/null || . /etc/profile
eval "$(conda shell.bash hook)" && conda activate {name} || exit
"""


@dataclass(frozen=True)
class JobRequest:
    """What the user wants of a job, beside the size of nodes.

    Attributes
    ----------
    options
        Of sbatch, quoted.
    modules
        Environment modules that its nodes load.
    conda
        The conda environment that runs there, by its name or folder.
    container
        The image that it runs in, as Apptainer takes it.
    gres
        Resources of each node beside the GPUs that its size says.
    partition
        Where its nodes are, if the user has named one.
    """

    options: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    partition: str | None = None
    conda: str | None = None
    container: str | None = None
    gres: str | None = None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> JobRequest:
        """Return what `dataclasses.asdict` has made a row of."""
        listed = {name: tuple(row[name]) for name in ("options", "modules")}
        return cls(**{**row, **listed})

    @property
    def has_python(self) -> bool:
        """Whether it brings the Python that ranks run in."""
        return bool(self.conda or self.container)

    @property
    def loading(self) -> str:
        """The lines of a shell script that load its modules, and its conda environment."""
        modules = _MODULES.format(names=shlex.join(self.modules)) if self.modules else ""
        return modules + (_CONDA.format(name=shlex.quote(self.conda)) if self.conda else "")


def size_options(spec: ClusterSpec, nodes: int, resources: str | None) -> list[str]:
    """Return the options of sbatch for so many nodes of a cluster, with these each; quoted."""
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
    if resources:
        options.append(f"--gres={resources}")
    return [shlex.quote(option) for option in options]


def submit_command(size: Sequence[str], request: JobRequest, name: str, script: str) -> list[str]:
    """Return the command that submits a job, and prints its number.

    Its options are not in the script, where variables of the user would come before them.

    Parameters
    ----------
    size
        The options of sbatch for its nodes, quoted.
    request
        What else is wanted of it.
    name
        The mark by which it is found.
    script
        The path of its script.
    """
    asked = shlex.split(" ".join([*size, *request.options]))
    return ["sbatch", "--parsable", *asked, f"--comment={name}", "--output=/dev/null", script]


def batch_script(
    request: JobRequest, folder: str, nodes: NodeEnvironment, waiting: Sequence[str]
) -> str:
    """Return the script of a job that starts an agent on each node.

    Parameters
    ----------
    request
        What is wanted of it.
    folder
        The folder of the start.
    nodes
        What nodes find.
    waiting
        What each node runs where it does not see that folder.
    """
    cpus = "${SLURM_CPUS_PER_TASK:+--cpus-per-task=$SLURM_CPUS_PER_TASK}"
    return f"""#!/bin/bash
# Nodes of jupyter_sky: each agent goes on until its cluster ends.
start={shlex.quote(folder)}
if test -e "$start/{SPECS}" || {{ sleep 1; test -e "$start/{SPECS}"; }}; then
    exec >"$start/{OUTPUT}" 2>&1
    {_indented(agent_lines(request, nodes))}
    srun {shlex.join(_EACH)} {cpus} \\
        {shlex.join(agent_command(request, nodes))} "$start" {_image(request)}
else
    # Homes are not shared: each node waits until a step of this job has made it ready.
    srun --job-name={WAITS} {shlex.join(_EACH)} {cpus} \\
        {shlex.join(waiting)}
fi
"""


def start_step(
    job: str,
    size: Sequence[str],
    request: JobRequest,
    name: str,
    folder: str,
    nodes: NodeEnvironment,
) -> list[str]:
    """Return the command that starts an agent on each of some nodes of a job."""
    image = [request.container] if request.container else []
    command = [*agent_command(request, nodes), folder, *image]
    return ["bash", "-c", f'{request.loading}exec "$@"', "bash", *_step(job, size, name), *command]


def waiting_step(job: str, size: Sequence[str], name: str, waiting: Sequence[str]) -> list[str]:
    """Return the command of a step whose nodes wait to be made ready."""
    return [*_step(job, size, name), *waiting]


def step_size(count: int, gpus: int, used: Sequence[str] = ()) -> list[str]:
    """Return the options of a step for so many nodes of a job, with so many GPUs each.

    Parameters
    ----------
    used
        Nodes of the job to leave out: what overlaps would be put on them first.
    """
    options = [f"--nodes={count}", f"--ntasks={count}", "--ntasks-per-node=1", "--mem=0"]
    if used:
        options.append(f"--exclude={','.join(used)}")
    # Those that the job got for all of its nodes together would be divided otherwise.
    return [*options, f"--gres=gpu:{gpus}"] if gpus else options


def step_beside(job: str, hosts: str, count: int = 1) -> list[str]:
    """Return the command before one that nodes of a job run, beside all that runs there."""
    where = [f"--jobid={job.partition('.')[0]}", f"--nodelist={hosts}", f"--nodes={count}"]
    return ["srun", *where, f"--ntasks={count}", *_BESIDE, "--unbuffered", "--quiet"]


def agent_lines(request: JobRequest, nodes: NodeEnvironment) -> str:
    """Return the lines of a shell script before the command of an agent."""
    code = shlex.quote(nodes.code)
    return f"{request.loading}export PYTHONPATH={code}${{PYTHONPATH:+:$PYTHONPATH}}"


def agent_command(request: JobRequest, nodes: NodeEnvironment) -> list[str]:
    """Return the command of an agent, without the folder of its start and its image."""
    python = "python" if request.conda else nodes.python
    return [python, "-P", "-m", "jupyter_sky.providers.slurm.on_node"]


def _step(job: str, size: Sequence[str], name: str) -> list[str]:
    return ["srun", f"--jobid={job}", "--overlap", f"--job-name={name}", *size, *_EACH]


def _image(request: JobRequest) -> str:
    return shlex.quote(request.container) if request.container else ""


def _indented(lines: str) -> str:
    return lines.replace("\n", "\n    ")


def _whole(name: str, amount: object) -> int:
    number = float(str(amount).rstrip("+"))
    if number != int(number):
        raise UsageError(f"--{name} {amount} is no whole number: Slurm takes whole ones.")
    return int(number)
