"""The table of the options of ``%%sky``; `commands` has the table of ``%sky``'s commands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import Any, Literal

from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.parser import Argument

RankSelection = Literal["all", "head"] | tuple[int, ...]
"""What ``--ranks`` is parsed to."""

_NODE_HOSTS = replace(types.HOSTS, combine=tuple)
"""Hosts that become nodes: who names one twice may mean two ranks on it."""

CLUSTER_OPTIONS = tuple(
    Argument(*row)
    for row in [
        # names, metavar, type, example, help (in parentheses: the default)
        (("--nodes", "--num-nodes", "-n"), "N", types.WHOLE, "4", "number of nodes (1)"),
        (("--gpu", "--gpus"), "NAME[:COUNT]", types.GPU, "L4:4", "GPUs of each node"),
        (("--cpus",), "N[+]", types.AMOUNT, "8+", "CPUs of each node; with +, at least that many"),
        (
            ("--memory",),
            "GB[+]",
            types.AMOUNT,
            "32+",
            "memory of each node; with +, at least that much",
        ),
        (
            ("--provider",),
            "NAME",
            types.PROVIDERS,
            "aws",
            "where nodes come from; of several, the cheapest that has them (local)",
        ),
        (
            ("--selection",),
            "WHICH",
            types.SELECTION,
            "first",
            "which of several to try first: the cheapest, or the first (cheapest)",
        ),
        (("--hosts",), "HOST", _NODE_HOSTS, "gpu1,gpu2", "hosts to reach over SSH"),
        (
            ("--region",),
            "NAME",
            types.REGIONS,
            "us-east-1",
            "AWS region; of several with commas, the first that has the nodes",
        ),
        (
            ("--aws-profile",),
            "NAME",
            types.WORD,
            "work",
            "profile of the AWS configuration (the usual one)",
        ),
        (("--instance-type",), "TYPE", types.WORD, "p4d.24xlarge", "AWS instance type"),
        (("--zone",), "NAME", types.WORD, "us-east-1a", "AWS availability zone (any)"),
        (("--image-id",), "AMI", types.WORD, "ami-1a2b3c4d", "AWS machine image (newest Ubuntu)"),
        (("--partition",), "NAME", types.WORD, "gpu", "Slurm partition (its default one)"),
        (("--account",), "NAME", types.WORD, "physics", "Slurm account (yours)"),
        (("--qos",), "NAME", types.WORD, "normal", "Slurm quality of service (yours)"),
        (("--time",), "TIME", types.JOB_TIME, "2:00:00", "time of the Slurm job (the longest)"),
        (("--constraint",), "FEATURES", types.FEATURES, "a100", "features of Slurm nodes (any)"),
        (("--gres",), "LIST", types.GRES, "shard:2", "Slurm resources, beside what --gpu names"),
        (("--exclusive",), "", None, "", "Slurm nodes that no other job has a part of"),
        (("--sbatch",), "OPTIONS", types.SBATCH, "'-x n7'", "further options of sbatch, quoted"),
        (("--login",), "HOST", types.HOST, "me@login1", "Slurm login node (this computer)"),
        (("--modules",), "NAME", types.MODULES, "cuda/12.4", "modules that Slurm nodes load"),
        (("--conda",), "NAME", types.PLACE, "train", "conda environment of Slurm nodes"),
        (("--container",), "IMAGE", types.PLACE, "torch.sif", "Apptainer image for Slurm nodes"),
        (("--spot", "--use-spot"), "", None, "", "cheaper instances that AWS may take back"),
        (
            ("--spot-or-on-demand",),
            "",
            None,
            "",
            "spot instances if there are any, on-demand ones otherwise",
        ),
        (("--ssm",), "", None, "", "reach instances by AWS Systems Manager, with no open port"),
        (
            ("--cluster", "-c"),
            "NAME",
            types.CLUSTER,
            "train",
            "name of the cluster (the notebook's own)",
        ),
        (
            ("--plugin",),
            "NAME",
            types.PLUGINS,
            "torch",
            "frameworks to prepare (torch, if it is installed)",
        ),
        (("--pip",), "PACKAGE", types.PACKAGES, "transformers", "packages to install"),
        (
            ("--wheels",),
            "FOLDER",
            types.FOLDERS,
            "wheels",
            "install from these folders of wheels, for hosts without internet",
        ),
        (
            ("--env",),
            "FILE",
            types.ENVIRONMENT,
            "uv.lock",
            "install what a file says, in place of what the notebook imports, or none (imports)",
        ),
        (
            ("--index",),
            "URL",
            types.INDEXES,
            "https://wheels.example.org/simple",
            "package index to ask beside the usual one",
        ),
        (
            ("--include",),
            "PATH",
            types.INCLUDED,
            "data",
            "files and folders to send to the nodes at the start",
        ),
        (
            ("--volume",),
            "URL:PATH[:ro]",
            types.VOLUMES,
            "s3://bucket/photos:/data:ro",
            "data of a bucket or shared folder, at a path of each node",
        ),
        (
            ("--variable",),
            "NAME=VALUE",
            types.RANK_VARIABLES,
            "EPOCHS=3",
            "environment variable of the ranks; the NAME alone for its value here",
        ),
        (("--procs-per-node",), "K", types.WHOLE, "2", "ranks of each node (one per GPU)"),
        (
            ("--idle-timeout",),
            "TIME",
            types.TIME,
            "30m",
            "end the cluster after this long without a run",
        ),
        (("--autostop",), "", None, "", "stop the cluster then, and keep its disks"),
        (
            ("--max-price",),
            "DOLLARS",
            types.DOLLARS,
            "20",
            "highest price per hour of all nodes, accepted without asking",
        ),
        (("--replace",), "", None, "", "replace a node that is lost with another one"),
        (
            ("--patience",),
            "TIME",
            types.TIME,
            "1h",
            "how long to wait for an unreachable node (10m, 15s during a run)",
        ),
        (
            ("--max-cost",),
            "DOLLARS",
            types.DOLLARS,
            "40",
            "end the cluster before it costs more than this",
        ),
    ]
)
RUN_OPTIONS = tuple(
    Argument(*row)
    for row in [
        (("--ranks",), "RANKS", types.RANKS, "0,2-3", "ranks that run the cell (all)"),
        (("--stdout",), "RANKS", types.SHOWN, "all", "ranks whose output is shown (head)"),
        (
            ("--display",),
            "HOW",
            types.DISPLAY,
            "safe",
            "rich, or safe: without scripts from nodes (rich)",
        ),
        (
            ("--in",),
            "NAME",
            types.NAMES_OR_NONE,
            "model,data",
            "variables to send (those that the cell reads)",
        ),
        (("--allow-large",), "", None, "", "allow sending more than 4 GB"),
        (
            ("--out",),
            "NAME",
            types.RESULTS,
            "model,losses",
            "bring back variables of the head; a state dictionary, model:state, as model_state",
        ),
        (
            ("--gather",),
            "NAME",
            types.RESULTS,
            "losses",
            "bring back variables of all ranks, as lists",
        ),
        (("--sh",), "", None, "", "run the cell as a shell script, once on each node"),
        (
            ("--workdir",),
            "FOLDER",
            types.FOLDER,
            ".",
            "keep this folder on the nodes like here, and run there",
        ),
        (("--background",), "", None, "", "return at once; the run continues in the background"),
        (
            ("--retry",),
            "N",
            types.WHOLE,
            "3",
            "run the cell again if a rank or a node is lost, N times at most",
        ),
        (("--timeout",), "TIME", types.TIME, "10m", "stop the run after this long"),
        (
            ("--hang-after",),
            "TIME",
            types.TIME,
            "1m",
            "say where ranks are that wait this long for another (10s)",
        ),
        (("--profile",), "", None, "", "record torch's profiler, and show what took time"),
        (
            ("--show-memory",),
            "",
            None,
            "",
            "show torch's memory of each rank; also `--memory` without a number",
        ),
        (("--pdb",), "", None, "", "stop in the debugger where the cell raises an exception"),
    ]
)
CELL_OPTIONS = CLUSTER_OPTIONS + RUN_OPTIONS
OPTION_NAMES = {each.field: each.name for each in CELL_OPTIONS}
"""The names of a cell's options, by their fields."""
PROGRAM_DEFAULTS = ("--stdout", "--workdir")
"""Options of ``jupyter sky run`` that are for those of its cells that leave them out."""
_OF_SCRIPTS = ("--stdout", "--allow-large", "--workdir", "--background", "--timeout")
SCRIPT_OPTIONS = CLUSTER_OPTIONS + tuple(each for each in RUN_OPTIONS if each.name in _OF_SCRIPTS)

JOB_OPTIONS = ("partition", "account", "qos", "time", "constraint", "gres", "exclusive", "sbatch")
"""The options of a job of Slurm, by their fields."""


@dataclass(frozen=True)
class CellOptions:
    """The options of a ``%%sky``; omitted ones are None, empty or False.

    Attributes
    ----------
    provider
        Several are separated by commas.
    stdout
        None means the head, or the first rank of a run without the head.
    plugin
        Empty for ``none``.
    env
        The name of a file, ``imports``, or ``none``.
    variable
        Names of environment variables, each with its value.
    display
        Whether displays of ranks may use everything that a page can show; ``None`` for what the
        settings say.
    in_names
        Empty for ``none``; None for the names that the cell reads.
    timeout, idle_timeout, patience, hang_after
        Seconds.
    max_price, max_cost
        Dollars per hour, and dollars.
    dry_run
        For ``%sky up``: whether only to say what would be started.
    """

    nodes: int | None = None
    gpu: str | None = None
    cpus: str | None = None
    memory: str | None = None
    provider: str | None = None
    selection: Literal["cheapest", "first"] | None = None
    hosts: tuple[str, ...] = ()
    region: str | None = None
    aws_profile: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    image_id: str | None = None
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    time: str | None = None
    constraint: str | None = None
    gres: str | None = None
    exclusive: bool = False
    sbatch: str | None = None
    login: str | None = None
    modules: tuple[str, ...] = ()
    conda: str | None = None
    container: str | None = None
    spot: bool = False
    spot_or_on_demand: bool = False
    ssm: bool = False
    cluster: str | None = None
    plugin: tuple[str, ...] | None = None
    pip: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    env: str | None = None
    index: tuple[str, ...] = ()
    include: tuple[str, ...] = ()
    volumes: tuple[str, ...] = ()
    variable: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    procs_per_node: int | None = None
    idle_timeout: float | None = None
    autostop: bool = False
    max_price: float | None = None
    replace: bool = False
    patience: float | None = None
    max_cost: float | None = None
    ranks: RankSelection = "all"
    stdout: RankSelection | Literal["none"] | None = None
    display: Literal["rich", "safe"] | None = None
    in_names: tuple[str, ...] | None = None
    allow_large: bool = False
    out: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()
    sh: bool = False
    workdir: str | None = None
    background: bool = False
    retry: int | None = None
    timeout: float | None = None
    hang_after: float | None = None
    profile: bool = False
    show_memory: bool = False
    pdb: bool = False
    dry_run: bool = False

    @cached_property
    def given(self) -> Mapping[str, Any]:
        """Those that are not omitted, by field."""
        values = ((each, getattr(self, each.name)) for each in fields(self))
        return {each.name: value for each, value in values if value != each.default}

    @cached_property
    def concerns_run_alone(self) -> bool:
        """Whether it says nothing of the cluster but its name, as most cells do: any fits."""
        described = {each.field for each in CLUSTER_OPTIONS if each.field != "cluster"}
        return described.isdisjoint(self.given)
