"""The tables of the options of ``%%sky`` and of the commands of ``%sky``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.parser import Argument

RankSelection = Literal["all", "head"] | tuple[int, ...]
"""What ``--ranks`` is parsed to."""

CLUSTER_OPTIONS = tuple(
    Argument(*row)
    for row in [
        # names, metavar, type, example, help (in parentheses: the default)
        (("--nodes", "--num-nodes", "-n"), "N", types.WHOLE, "4", "how many machines (1)"),
        (("--gpu", "--gpus"), "NAME[:COUNT]", types.GPU, "L4:4", "the GPUs of each of them"),
        (("--cpus",), "N[+]", types.AMOUNT, "8+", "the CPUs of each, with + at least"),
        (("--memory",), "GB[+]", types.AMOUNT, "32+", "the memory of each, with + at least"),
        (("--provider",), "NAME", types.PROVIDER, "aws", "where they come from (local)"),
        (("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "the machines to reach over SSH"),
        (("--region",), "NAME", types.WORD, "us-east-1", "the region of AWS"),
        (
            ("--instance-type",),
            "TYPE",
            types.WORD,
            "p4d.24xlarge",
            "the type of machine on AWS",
        ),
        (("--zone",), "NAME", types.WORD, "us-east-1a", "the zone of that region (any)"),
        (
            ("--image-id",),
            "AMI",
            types.WORD,
            "ami-1a2b3c4d",
            "the image on AWS (newest Ubuntu)",
        ),
        (("--spot", "--use-spot"), "", None, "", "cheaper machines that may be taken away"),
        (
            ("--cluster", "-c"),
            "NAME",
            types.CLUSTER,
            "train",
            "which cluster (the notebook's own)",
        ),
        (
            ("--plugin",),
            "NAME",
            types.PLUGINS,
            "torch",
            "what to prepare (torch, if it is there)",
        ),
        (("--pip",), "PACKAGE", types.PACKAGES, "transformers", "what to install"),
        (
            ("--procs-per-node",),
            "K",
            types.WHOLE,
            "2",
            "ranks of each machine (one for a GPU)",
        ),
        (
            ("--idle-timeout",),
            "TIME",
            types.TIME,
            "30m",
            "end the cluster when idle for so long",
        ),
        (
            ("--max-price",),
            "DOLLARS",
            types.DOLLARS,
            "20",
            "what all may cost an hour, unasked",
        ),
        (("--replace",), "", None, "", "have another node take the place of one that is lost"),
        (
            ("--patience",),
            "TIME",
            types.TIME,
            "1h",
            "how long to wait for a node that nobody reaches (10m, 15s in a run)",
        ),
        (
            ("--max-cost",),
            "DOLLARS",
            types.DOLLARS,
            "40",
            "end the cluster before it costs more",
        ),
    ]
)
RUN_OPTIONS = tuple(
    Argument(*row)
    for row in [
        (("--ranks",), "RANKS", types.RANKS, "0,2-3", "where the cell runs (all)"),
        (("--stdout",), "RANKS", types.SHOWN, "all", "whose output is shown (the head's)"),
        (
            ("--display",),
            "HOW",
            types.DISPLAY,
            "safe",
            "rich, or safe: no scripts of nodes in this page (rich)",
        ),
        (
            ("--in",),
            "NAME",
            types.NAMES_OR_NONE,
            "model,data",
            "what is sent (what it reads)",
        ),
        (("--allow-large",), "", None, "", "send more than 4 GB without asking"),
        (("--out",), "NAME", types.RESULTS, "model,losses", "bring back the head's values"),
        (
            ("--gather",),
            "NAME",
            types.RESULTS,
            "losses",
            "bring back lists, one value a rank",
        ),
        (("--background",), "", None, "", "return at once, with a handle"),
        (("--timeout",), "TIME", types.TIME, "10m", "stop the cell after so long"),
    ]
)
CELL_OPTIONS = CLUSTER_OPTIONS + RUN_OPTIONS

_NAME = Argument(("name",), "NAME", types.CLUSTER, "train", "which cluster (the current one)")
_CLUSTER = Argument(
    ("--cluster", "-c"), "NAME", types.CLUSTER, "train", "which cluster (the current one)"
)
_PROVIDER = Argument(("--provider",), "NAME", types.PROVIDER, "aws", "also what this one needs")
_UNKNOWN_ID = Argument(
    ("name",), "ID", types.WORD, "1f2e3d4c", "also this cluster of another registry"
)
_REMOVE = Argument(("--remove",), "NAME", types.WORD, "jupyter-sky-0f1e", "remove this one")
_NAMES = Argument(("names",), "NAME", types.NAMES, "model", "which variables", required=True)
_SOURCE_RANKS = Argument(("--ranks",), "RANKS", types.RANKS, "0,2-3", "from which ranks (the head)")
_LOG_RANKS = Argument(("ranks",), "RANKS", types.RANKS, "0,2-3", "which ranks (the head)")
_RANKS = Argument(("ranks",), "RANKS", types.RANKS, "0,2-3", "which ranks (all)")
_HOSTS = Argument(("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "machines to look at as well")
_NODES = Argument(("nodes",), "N", types.NODES, "8", "how many it shall have; the last ones leave")
_MORE_HOSTS = Argument(("--hosts",), "HOST", types.HOSTS, "gpu3,gpu4", "machines to take for more")
_CLEANED_HOSTS = Argument(
    ("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "machines to clean up as well"
)
_UNUSED = Argument(
    ("--unused-for",), "TIME", types.TIME, "30d", "how long nothing used an environment (14d)"
)
_FOLLOW = Argument(("--follow", "-f"), "", None, "", "go on showing what comes")
_SWITCH = Argument(("switch",), "on|off|status", types.SWITCH, "on", "begin, end, or ask (status)")
_SAVE = Argument(("--save",), "FILE", types.FILE, "rank3.log", "write all of it to a file here")
_JSON = Argument(("--json",), "", None, "", "say it as JSON, for programs")
_TAIL = Argument(("--tail",), "LINES", types.WHOLE, "20", "only the last lines")

_OFFERED = ("--nodes", "--gpu", "--cpus", "--memory", "--region", "--zone", "--instance-type")
OFFER_OPTIONS = (
    *(each for each in CLUSTER_OPTIONS if each.name in _OFFERED),
    Argument(("--provider",), "NAME", types.PROVIDER, "local", "at which provider (aws)"),
    _JSON,
)

COMMANDS: Mapping[str, tuple[str, tuple[Argument, ...]]] = {
    "up": ("start a cluster, without running anything", CLUSTER_OPTIONS),
    "down": ("end a cluster", (_NAME,)),
    "status": ("show the clusters and what they do", (_JSON,)),
    "logs": (
        "show what ranks wrote",
        (_LOG_RANKS, _FOLLOW, _TAIL, _SAVE, _JSON, _CLUSTER),
    ),
    "push": ("send variables to all ranks", (_NAMES,)),
    "pull": ("bring back the values of variables", (_NAMES, _SOURCE_RANKS)),
    "attach": ("connect to a cluster that is up", (_NAME,)),
    "panel": ("show the panel of a cluster here", (_NAME,)),
    "interrupt": ("stop what runs", (_CLUSTER,)),
    "restart": ("start ranks anew, with empty namespaces", (_RANKS, _CLUSTER)),
    "scale": (
        "give the cluster more nodes, or fewer; ranks that stay keep all",
        (_NODES, _MORE_HOSTS, _CLUSTER),
    ),
    "auto": ("run every following cell on the cluster, or no longer", (_SWITCH,)),
    "offers": ("show what a cluster can be made of, and what it costs", OFFER_OPTIONS),
    "snapshot": ("keep the head as an image, from which others start fast", (_REMOVE, _CLUSTER)),
    "doctor": ("check what a cluster needs, and say what is missing", (_HOSTS, _PROVIDER)),
    "gc": (
        "end and remove what was left behind, and what nobody uses",
        (_UNKNOWN_ID, _CLEANED_HOSTS, _UNUSED),
    ),
}


@dataclass(frozen=True)
class CellOptions:
    """The options of one ``%%sky``; those that were left out are None, empty or False.

    Attributes
    ----------
    stdout
        None means the head, or the first rank of a run without the head.
    plugin
        Empty for ``none``.
    display
        Whether what ranks display may be all that a page can show.
    in_names
        Empty for ``none``; None for the names that the cell reads.
    timeout, idle_timeout, patience
        Seconds.
    max_price, max_cost
        Dollars an hour, and dollars.
    """

    nodes: int | None = None
    gpu: str | None = None
    cpus: str | None = None
    memory: str | None = None
    provider: str | None = None
    hosts: tuple[str, ...] = ()
    region: str | None = None
    instance_type: str | None = None
    zone: str | None = None
    image_id: str | None = None
    spot: bool = False
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
    background: bool = False
    timeout: float | None = None
