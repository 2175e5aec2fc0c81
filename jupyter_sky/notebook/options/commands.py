"""The table of the commands of ``%sky``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from jupyter_sky.notebook.options import types
from jupyter_sky.notebook.options.definitions import (
    CLUSTER_OPTIONS,
    PROGRAM_DEFAULTS,
    RUN_OPTIONS,
    SCRIPT_OPTIONS,
)
from jupyter_sky.notebook.options.parser import Argument
from jupyter_sky.notebook.options.torchrun import TORCHRUN_OPTIONS

_ALL_SHOWN = Argument(
    ("--stdout",), "RANKS", types.SHOWN, "head", "ranks whose output is shown (all)"
)
_SCRIPT_OPTIONS = tuple(_ALL_SHOWN if each.name == "--stdout" else each for each in SCRIPT_OPTIONS)

_DISCARD = Argument(
    ("--discard",),
    "",
    None,
    "",
    "lose what of volumes could not be written back, or forget a cluster whose Slurm does not "
    "answer, or whose computer is gone",
)
_DISCARD_LEAVING = replace(
    _DISCARD, help="lose what nodes that leave could not write back to volumes"
)
_NAME = Argument(("name",), "NAME", types.CLUSTER, "train", "the cluster (the current or only one)")
_SHOWN = replace(_NAME, help="show this cluster alone (all)")
_CLUSTER = Argument(
    ("--cluster", "-c"), "NAME", types.CLUSTER, "train", "the cluster (the current or only one)"
)
_PROVIDER = Argument(
    ("--provider",), "NAME", types.PROVIDER, "aws", "also check what this provider needs"
)
_LOGIN = Argument(
    ("--login",), "HOST", types.HOST, "me@login1", "login node of Slurm to check (this computer)"
)
_UNKNOWN_ID = Argument(
    ("name",), "ID", types.WORD, "1f2e3d4c", "also end this cluster of another registry"
)
_REMOVE = Argument(("--remove",), "NAME", types.WORD, "jupyter-sky-0f1e", "snapshot to remove")
_RUN = Argument(("--run",), "ID", types.WORD, "3f2a9c0d1e4b", "the run with this id alone")
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
_PORT = Argument(("port",), "PORT", types.PORT, "6006", "port of the page", required=True)
_SERVING = Argument(
    ("--ranks", "--rank"), "RANK", types.RANKS, "2", "rank whose node serves it (head)"
)
_OFF = Argument(("--off",), "", None, "", "take the link away")
_NODES = Argument(
    ("nodes",), "N", types.NODES, "8", "new number of nodes; the last ones leave first"
)
_MORE_HOSTS = Argument(("--hosts",), "HOST", types.HOSTS, "gpu3,gpu4", "hosts for the new nodes")
_CLEANED_HOSTS = Argument(
    ("--hosts",), "HOST", types.HOSTS, "gpu1,gpu2", "also clean up these hosts"
)
_SCRIPT = Argument(("script",), "SCRIPT", types.SCRIPT, "train.py", "script to run", required=True)
_TASK_FILE = Argument(("file",), "FILE", types.TASK_FILE, "task.yaml", "task file", required=True)
_PROGRAM = Argument(
    ("file",), "FILE", types.PROGRAM, "train.ipynb", "notebook or script to run", required=True
)
_DEFAULTS = tuple(
    replace(each, help=f"{each.help}, unless a cell says it")
    for each in RUN_OPTIONS
    if each.name in PROGRAM_DEFAULTS
)
_KEEP = Argument(
    ("--keep",), "", None, "", "leave up the clusters that it starts, also after Ctrl-C"
)
_EXPORTED = Argument(
    ("file",), "FILE", types.SCRIPT, "train.py", "script to write (named after the notebook)"
)
_FROM_NOTEBOOK = Argument(
    ("--notebook",), "FILE", types.PROGRAM, "train.ipynb", "notebook to read (this one, as saved)"
)
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
    "remove environments and wheels that were not used for this long (14d)",
)
_FOLLOW = Argument(("--follow", "-f"), "", None, "", "keep showing new output")
_SWITCH = Argument(
    ("switch",), "on|off|status", types.SWITCH, "on", "turn it on or off, or show which (status)"
)
_ACTION = Argument(("action",), "install", types.PIP_ACTION, "install", "what to do", True)
_PACKAGES = Argument(
    ("packages",), "PACKAGE", types.PACKAGES, "install einops", "packages as pip writes them"
)
_WHEELS = next(each for each in CLUSTER_OPTIONS if each.name == "--wheels")
_INDEX = next(each for each in CLUSTER_OPTIONS if each.name == "--index")
_PATHS = Argument(
    ("paths",), "FILE", types.PATHS, "data.csv", "files and folders of this computer", required=True
)
_NODE_PATHS = Argument(
    ("paths",), "FILE", types.NODE_PATHS, "outputs/*.png", "files and folders there", required=True
)
_TO = Argument(("--to",), "FOLDER", types.FOLDER, "data", "folder to put them into")
_FORCE = Argument(("--force",), "", None, "", "replace files that were changed there, or are newer")
_FROM = Argument(
    ("--ranks", "--rank"), "RANKS", types.RANKS, "2", "ranks on whose nodes they are (head)"
)
_LARGE = next(each for each in RUN_OPTIONS if each.name == "--allow-large")
_SHELL_RANK = Argument(("ranks",), "RANK", types.RANKS, "3", "the rank (head)")
_HOLD = Argument(
    ("--hold",), "", None, "", "wait for Enter if there is no shell, so that the reason is read"
)
_SAVE = Argument(("--save",), "FILE", types.FILE, "rank3.log", "save the whole log to this file")
_DRY_RUN = Argument(
    ("--dry-run",), "", None, "", "show what would be started, made and paid; nothing is"
)
_FORESEEN = Argument(
    ("--dry-run",), "", None, "", "show what would be lost, and what the disks would cost; no more"
)
_NEW_LIMIT = replace(
    next(each for each in CLUSTER_OPTIONS if each.name == "--max-cost"),
    help="end the cluster before it costs more than this from now on",
)
_MAX_PRICE = next(each for each in CLUSTER_OPTIONS if each.name == "--max-price")
_AGREED = Argument(
    ("--agreed",),
    "DOLLARS",
    types.DOLLARS,
    "5",
    "dollars an hour that the user has agreed to in a dialog, which are no limit",
    is_internal=True,
)
_JSON = Argument(("--json",), "", None, "", "print JSON, for programs")
_TAIL = Argument(("--tail",), "LINES", types.WHOLE, "20", "show only the last lines")

_DAYS = Argument(("--days",), "N", types.WHOLE, "7", "how many days, up to today (30)")

_OFFERED = (
    "--nodes",
    "--gpu",
    "--cpus",
    "--memory",
    "--login",
    "--region",
    "--aws-profile",
    "--zone",
    "--instance-type",
    "--spot",
    "--max-price",
)

# A cell has `--profile` for torch's profiler.
_CLUSTER_OPTIONS = tuple(
    replace(each, names=(*each.names, "--profile")) if each.name == "--aws-profile" else each
    for each in CLUSTER_OPTIONS
)
OFFER_OPTIONS = (
    *(each for each in _CLUSTER_OPTIONS if each.name in _OFFERED),
    Argument(("--provider",), "NAME", types.PROVIDER, "local", "provider to ask (aws)"),
    _JSON,
)

COMMANDS: Mapping[str, tuple[str, tuple[Argument, ...]]] = {
    "up": ("start a cluster without running a cell", (*_CLUSTER_OPTIONS, _DRY_RUN)),
    "down": ("end a cluster", (_NAME, _DISCARD)),
    "stop": (
        "stop the machines of a cluster and keep their disks, which cost less",
        (_NAME, _FORESEEN),
    ),
    "start": ("start a stopped cluster again", (_NAME, _MAX_PRICE, _NEW_LIMIT)),
    "status": ("show clusters, their ranks and runs", (_SHOWN, _JSON)),
    "logs": ("show the output of ranks", (_LOG_RANKS, _FOLLOW, _TAIL, _SAVE, _JSON, _CLUSTER)),
    "push": ("send variables to all ranks", (_NAMES, _CLUSTER)),
    "pull": ("bring variables back from the ranks", (_RESULTS, _SOURCE_RANKS, _CLUSTER)),
    "vars": ("show what names stand for on the ranks", (_ALL_NAMES, _CLUSTER)),
    "same": (
        "compare variables between the ranks, and show where they differ first",
        (_COMPARED, _RANDOM, _CLUSTER),
    ),
    "metrics": ("return a table of what ranks have logged with `sky.log`", (_CLUSTER,)),
    "pip": (
        "install packages on all nodes of a cluster that is up; variables stay",
        (_ACTION, _PACKAGES, _WHEELS, _INDEX, _CLUSTER),
    ),
    "put": ("send files and folders to all nodes", (_PATHS, _TO, _FORCE, _LARGE, _CLUSTER)),
    "get": (
        "bring files and folders from a node",
        (_NODE_PATHS, _FROM, _TO, _FORCE, _LARGE, _CLUSTER),
    ),
    "attach": ("connect to a cluster that is up", (_NAME,)),
    "panel": ("show the last run of a cluster here, live", (_NAME,)),
    "where": ("show what each rank is doing, and which ranks the others wait for", (_CLUSTER,)),
    "profile": (
        "look at a run for a time, and show what its ranks spend it on",
        (_SECONDS, _LOOK_RANKS, _CLUSTER),
    ),
    "debug": ("look at the error of a rank in the debugger", (_DEBUGGED, _CLUSTER)),
    "interrupt": ("stop the current run", (_RUN, _CLUSTER)),
    "restart": ("restart ranks with empty namespaces", (_RANKS, _CLUSTER)),
    "scale": (
        "add or remove nodes; ranks that stay keep their variables",
        (_NODES, _MORE_HOSTS, _MAX_PRICE, _AGREED, _DISCARD_LEAVING, _CLUSTER),
    ),
    "torchrun": (
        "run a script under torchrun on every node",
        (_SCRIPT, *_SCRIPT_OPTIONS, *TORCHRUN_OPTIONS),
    ),
    "launch": (
        "run a SkyPilot task file on every node; options replace what the file says",
        (
            _TASK_FILE,
            *(each for each in _SCRIPT_OPTIONS if each.name not in ("--env", "--variable")),
            _ENV,
            _SECRET,
            _NO_SETUP,
        ),
    ),
    "shell": ("open a shell on the node of a rank, in a terminal", (_SHELL_RANK, _HOLD, _CLUSTER)),
    "run": (
        "run a notebook or script in a terminal; options replace those of cells",
        (_PROGRAM, *CLUSTER_OPTIONS, *_DEFAULTS, _KEEP),
    ),
    "export": (
        "write a Python script that does the same as the notebook's cells",
        (_EXPORTED, _FROM_NOTEBOOK),
    ),
    "forward": (
        "show a page that a node serves, like TensorBoard, at Jupyter's own address",
        (_PORT, _SERVING, _OFF, _CLUSTER),
    ),
    "auto": ("run all following cells on the cluster", (_SWITCH,)),
    "dask": ("return a client of Dask on the cluster, as in `client = %sky dask`", (_CLUSTER,)),
    "offers": ("show which nodes are available and what they cost", OFFER_OPTIONS),
    "costs": ("show what clusters have cost, in GPU hours and dollars, by day", (_DAYS, _JSON)),
    "snapshot": (
        "save the head's disk as an image, from which nodes start faster",
        (_REMOVE, _CLUSTER),
    ),
    "doctor": ("check this setup and say what is missing", (_HOSTS, _PROVIDER, _LOGIN)),
    "gc": (
        "remove what dead clusters left behind, and unused environments",
        (_UNKNOWN_ID, _CLEANED_HOSTS, _UNUSED),
    ),
}
OF_A_CELL = ("torchrun", "launch", "run")
"""Commands that take options of a cell beside their own."""
SCRIPT_COMMANDS = ("torchrun", "launch")
"""Commands whose options are those of a cell, and more."""
