"""The tables of the options of ``%%sky`` and of the commands of ``%sky``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.parser import Argument
from jupyter_sky.notebook.options.torchrun import TORCHRUN_OPTIONS

RankSelection = Literal["all", "head"] | tuple[int, ...]
"""What ``--ranks`` is parsed to."""

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
        (("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "hosts to reach over SSH"),
        (("--region",), "NAME", types.WORD, "us-east-1", "AWS region"),
        (
            ("--instance-type",),
            "TYPE",
            types.WORD,
            "p4d.24xlarge",
            "AWS instance type",
        ),
        (("--zone",), "NAME", types.WORD, "us-east-1a", "AWS availability zone (any)"),
        (
            ("--image-id",),
            "AMI",
            types.WORD,
            "ami-1a2b3c4d",
            "AWS machine image (newest Ubuntu)",
        ),
        (("--spot", "--use-spot"), "", None, "", "cheaper instances that AWS may take back"),
        (
            ("--spot-or-on-demand",),
            "",
            None,
            "",
            "such instances where there are any, and others where not",
        ),
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
            ("--procs-per-node",),
            "K",
            types.WHOLE,
            "2",
            "ranks of each node (one per GPU)",
        ),
        (
            ("--idle-timeout",),
            "TIME",
            types.TIME,
            "30m",
            "end the cluster after this long without a run",
        ),
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
            "bring back variables of the head; model:state for a state dictionary",
        ),
        (
            ("--gather",),
            "NAME",
            types.RESULTS,
            "losses",
            "bring back variables of all ranks, as lists",
        ),
        (("--sh",), "", None, "", "run the cell as a shell script, once on each node"),
        (("--workdir",), "FOLDER", types.FOLDER, ".", "send this folder and run the script in it"),
        (("--background",), "", None, "", "return at once; the run continues in the background"),
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
_OF_SCRIPTS = ("--stdout", "--allow-large", "--workdir", "--background", "--timeout")
SCRIPT_OPTIONS = CLUSTER_OPTIONS + tuple(each for each in RUN_OPTIONS if each.name in _OF_SCRIPTS)
_ALL_SHOWN = {
    "--stdout": Argument(
        ("--stdout",), "RANKS", types.SHOWN, "head", "ranks whose output is shown (all)"
    )
}

_NAME = Argument(("name",), "NAME", types.CLUSTER, "train", "name of the cluster (the current one)")
_CLUSTER = Argument(
    ("--cluster", "-c"), "NAME", types.CLUSTER, "train", "name of the cluster (the current one)"
)
_PROVIDER = Argument(
    ("--provider",), "NAME", types.PROVIDER, "aws", "also check what this provider needs"
)
_UNKNOWN_ID = Argument(
    ("name",), "ID", types.WORD, "1f2e3d4c", "also end this cluster of another registry"
)
_REMOVE = Argument(("--remove",), "NAME", types.WORD, "jupyter-sky-0f1e", "snapshot to remove")
_NAMES = Argument(("names",), "NAME", types.NAMES, "model", "names of the variables", required=True)
_ALL_NAMES = replace(_NAMES, required=False, help="names of variables (all)")
_COMPARED = replace(_NAMES, required=False, help="names of variables on the ranks")
_RANDOM = Argument(
    ("--random",), "", None, "", "compare the states of random number generators too"
)
_RESULTS = replace(_NAMES, type=types.RESULTS)
_SOURCE_RANKS = Argument(
    ("--ranks",), "RANKS", types.RANKS, "0,2-3", "ranks to bring them from (head)"
)
_SECONDS = Argument(("seconds",), "TIME", types.TIME, "10s", "how long to look (10s)")
_LOOK_RANKS = Argument(("--ranks",), "RANKS", types.RANKS, "0,2-3", "ranks to look at (all)")
_LOG_RANKS = Argument(("ranks",), "RANKS", types.RANKS, "0,2-3", "ranks (head)")
_RANKS = Argument(("ranks",), "RANKS", types.RANKS, "0,2-3", "ranks (all)")
_HOSTS = Argument(("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "also check these hosts")
_DEBUGGED = Argument(
    ("--ranks", "--rank"), "RANKS", types.RANKS, "2", "ranks to look at (the one that failed first)"
)
_NODES = Argument(
    ("nodes",), "N", types.NODES, "8", "new number of nodes; the last ones leave first"
)
_MORE_HOSTS = Argument(("--hosts",), "HOST", types.HOSTS, "gpu3,gpu4", "hosts for the new nodes")
_CLEANED_HOSTS = Argument(
    ("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "also clean up these hosts"
)
_SCRIPT = Argument(("script",), "SCRIPT", types.SCRIPT, "train.py", "script to run", required=True)
_TASK_FILE = Argument(("file",), "FILE", types.TASK_FILE, "task.yaml", "task file", required=True)
_ENV = Argument(
    ("--env",), "NAME=VALUE", types.VARIABLES, "EPOCHS=3", "environment variable to set"
)
_SECRET = Argument(
    ("--secret",), "NAME", types.SECRETS, "HF_TOKEN", "environment variable to pass on from here"
)
_NO_SETUP = Argument(("--no-setup",), "", None, "", "skip the setup of the task file")
_UNUSED = Argument(
    ("--unused-for",),
    "TIME",
    types.TIME,
    "30d",
    "remove environments that were not used for this long (14d)",
)
_FOLLOW = Argument(("--follow", "-f"), "", None, "", "keep showing new output")
_SWITCH = Argument(
    ("switch",), "on|off|status", types.SWITCH, "on", "turn it on or off, or show which (status)"
)
_SAVE = Argument(("--save",), "FILE", types.FILE, "rank3.log", "save the whole log to this file")
_JSON = Argument(("--json",), "", None, "", "print JSON, for programs")
_TAIL = Argument(("--tail",), "LINES", types.WHOLE, "20", "show only the last lines")

_OFFERED = (
    "--nodes",
    "--gpu",
    "--cpus",
    "--memory",
    "--region",
    "--zone",
    "--instance-type",
    "--spot",
    "--max-price",
)
OFFER_OPTIONS = (
    *(each for each in CLUSTER_OPTIONS if each.name in _OFFERED),
    Argument(("--provider",), "NAME", types.PROVIDER, "local", "provider to ask (aws)"),
    _JSON,
)

COMMANDS: Mapping[str, tuple[str, tuple[Argument, ...]]] = {
    "up": ("start a cluster without running a cell", CLUSTER_OPTIONS),
    "down": ("end a cluster", (_NAME,)),
    "status": ("show clusters, their ranks and runs", (_JSON,)),
    "logs": (
        "show the output of ranks",
        (_LOG_RANKS, _FOLLOW, _TAIL, _SAVE, _JSON, _CLUSTER),
    ),
    "push": ("send variables to all ranks", (_NAMES,)),
    "pull": ("bring variables back from the ranks", (_RESULTS, _SOURCE_RANKS)),
    "vars": ("show what names stand for on the ranks", (_ALL_NAMES, _CLUSTER)),
    "same": (
        "compare variables between the ranks, and show where they differ first",
        (_COMPARED, _RANDOM, _CLUSTER),
    ),
    "metrics": ("return a table of what ranks have logged with `sky.log`", (_CLUSTER,)),
    "attach": ("connect to a cluster that is up", (_NAME,)),
    "panel": ("show the last run of a cluster here, live", (_NAME,)),
    "where": ("show what each rank is doing, and which ranks the others wait for", (_CLUSTER,)),
    "profile": (
        "look at a run for a time, and show what its ranks spend it on",
        (_SECONDS, _LOOK_RANKS, _CLUSTER),
    ),
    "debug": ("look at the error of a rank in the debugger", (_DEBUGGED, _CLUSTER)),
    "interrupt": ("stop the current run", (_CLUSTER,)),
    "restart": ("restart ranks with empty namespaces", (_RANKS, _CLUSTER)),
    "scale": (
        "add or remove nodes; ranks that stay keep their variables",
        (_NODES, _MORE_HOSTS, _CLUSTER),
    ),
    "torchrun": (
        "run a script under torchrun on every node",
        (_SCRIPT, *(_ALL_SHOWN.get(each.name, each) for each in SCRIPT_OPTIONS), *TORCHRUN_OPTIONS),
    ),
    "launch": (
        "run a SkyPilot task file on every node; options replace what the file says",
        (_TASK_FILE, *SCRIPT_OPTIONS, _ENV, _SECRET, _NO_SETUP),
    ),
    "auto": ("run all following cells on the cluster", (_SWITCH,)),
    "dask": ("return a client of Dask on the cluster, as in `client = %sky dask`", (_CLUSTER,)),
    "offers": ("show which nodes are available and what they cost", OFFER_OPTIONS),
    "snapshot": (
        "save the head's disk as an image, from which nodes start faster",
        (_REMOVE, _CLUSTER),
    ),
    "doctor": ("check this setup and say what is missing", (_HOSTS, _PROVIDER)),
    "gc": (
        "remove what dead clusters left behind, and unused environments",
        (_UNKNOWN_ID, _CLEANED_HOSTS, _UNUSED),
    ),
}
SCRIPT_COMMANDS = ("torchrun", "launch")
"""Commands whose options are those of a cell, and more."""


@dataclass(frozen=True)
class CellOptions:
    """The options of one ``%%sky``; those that were left out are None, empty or False.

    Attributes
    ----------
    provider
        Several have commas between them.
    stdout
        None means the head, or the first rank of a run without the head.
    plugin
        Empty for ``none``.
    display
        Whether what ranks display may be all that a page can show.
    in_names
        Empty for ``none``; None for the names that the cell reads.
    timeout, idle_timeout, patience, hang_after
        Seconds.
    max_price, max_cost
        Dollars an hour, and dollars.
    """

    nodes: int | None = None
    gpu: str | None = None
    cpus: str | None = None
    memory: str | None = None
    provider: str | None = None
    selection: Literal["cheapest", "first"] | None = None
    hosts: tuple[str, ...] = ()
    region: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    image_id: str | None = None
    spot: bool = False
    spot_or_on_demand: bool = False
    cluster: str | None = None
    plugin: tuple[str, ...] | None = None
    pip: tuple[str, ...] = ()
    procs_per_node: int | None = None
    idle_timeout: float | None = None
    max_price: float | None = None
    replace: bool = False
    patience: float | None = None
    max_cost: float | None = None
    ranks: RankSelection = "all"
    stdout: RankSelection | Literal["none"] | None = None
    display: Literal["rich", "safe"] = "rich"
    in_names: tuple[str, ...] | None = None
    allow_large: bool = False
    out: tuple[str, ...] = ()
    gather: tuple[str, ...] = ()
    sh: bool = False
    workdir: str | None = None
    background: bool = False
    timeout: float | None = None
    hang_after: float | None = None
    profile: bool = False
    show_memory: bool = False
    pdb: bool = False
