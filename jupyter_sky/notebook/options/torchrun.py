"""The options of torchrun, and where they end in a line: the user's script follows."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from jupyter_sky.notebook.options.option_type import OptionType
from jupyter_sky.notebook.options.parser import Argument


def _node_count(text: str) -> str:
    if not re.fullmatch(r"0*[1-9]\d*(:0*[1-9]\d*)?", text):
        raise ValueError(text)
    return text


def _process_count(text: str) -> str:
    if text not in ("auto", "cpu", "gpu", "xpu"):
        _count(text, least=1)
    return text


def _count(text: str, least: int = 0) -> str:
    if not text.isdecimal() or int(text) < least:
        raise ValueError(text)
    return text


_NODES = OptionType("a number of nodes, or the fewest and the most", _node_count)
_PROCESSES = OptionType("a number of processes, or auto, cpu, gpu or xpu", _process_count)
_WHOLE = OptionType("a whole number", _count)
_SECONDS = OptionType("a number of seconds", lambda text: str(float(text)))
_VALUE = OptionType("a value", lambda text: text)

TORCHRUN_OPTIONS = tuple(
    Argument(*row)
    for row in [
        (("--nnodes",), "N|MIN:MAX", _NODES, "1:4", "torchrun: number of nodes (all)"),
        (
            ("--nproc-per-node",),
            "K",
            _PROCESSES,
            "4",
            "torchrun: processes per node (one per GPU, or per rank)",
        ),
        (("--max-restarts",), "N", _WHOLE, "3", "torchrun: number of restarts after a failure (0)"),
        (("--monitor-interval",), "SECONDS", _SECONDS, "0.1", "torchrun: time between checks"),
        (("--module", "-m"), "", None, "", "torchrun: the script is a module"),
        (("--no-python",), "", None, "", "torchrun: the script is a program"),
        (("--run-path",), "", None, "", "torchrun: run the script in the same interpreter"),
        (("--standalone",), "", None, "", "torchrun: run on each node by itself"),
        (("--rdzv-backend",), "NAME", _VALUE, "c10d", "torchrun: rendezvous backend (c10d)"),
        (
            ("--rdzv-endpoint",),
            "HOST:PORT",
            _VALUE,
            "head:29400",
            "torchrun: its address (the head)",
        ),
        (("--rdzv-id",), "ID", _VALUE, "train", "torchrun: rendezvous id (that of the run)"),
        (("--rdzv-conf",), "K=V,…", _VALUE, "join_timeout=60", "torchrun: rendezvous settings"),
        (("--start-method",), "HOW", _VALUE, "spawn", "torchrun: start method of processes"),
        (("--event-log-handler",), "NAME", _VALUE, "null", "torchrun: event log handler"),
        (("--role",), "NAME", _VALUE, "trainer", "torchrun: role of the processes"),
        (("--log-dir",), "FOLDER", _VALUE, "logs", "torchrun: folder for logs on the nodes"),
        (("--redirects", "-r"), "WHAT", _VALUE, "3", "torchrun: streams that only go to --log-dir"),
        (("--tee", "-t"), "WHAT", _VALUE, "3", "torchrun: streams that also go to --log-dir"),
        (
            ("--local-ranks-filter",),
            "RANKS",
            _VALUE,
            "0",
            "torchrun: local ranks whose output is shown (all)",
        ),
        (("--duplicate-stdout-filters",), "TEXT", _VALUE, "loss", "torchrun: lines to copy"),
        (("--duplicate-stderr-filters",), "TEXT", _VALUE, "loss", "torchrun: lines to copy"),
        (("--logs-specs",), "NAME", _VALUE, "mine", "torchrun: log specification"),
        (("--numa-binding",), "HOW", _VALUE, "node", "torchrun: NUMA binding of processes"),
        (("--signals-to-handle",), "NAMES", _VALUE, "SIGTERM", "torchrun: signals to pass on"),
        (("--shutdown-timeout",), "SECONDS", _WHOLE, "30", "torchrun: time to end in"),
        (("--virtual-local-rank",), "", None, "", "torchrun: each process sees its GPU as 0"),
    ]
)

DECIDED = ("--node-rank", "--master-addr", "--master-port", "--local-addr")
"""Options of torchrun that differ from node to node."""


def split_line(words: Sequence[str], arguments: Sequence[Argument]) -> tuple[list[str], list[str]]:
    """Return the words before the script, with preferred option names, and the rest.

    Parameters
    ----------
    words
        What follows ``%sky torchrun``.
    arguments
        The options that may precede the script.
    """
    by_name = {name: each for each in arguments for name in each.names}
    before: list[str] = []
    rest = list(words)
    while rest and rest[0].startswith("-"):
        word = rest.pop(0)
        if word == "--":
            break
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        before.append(name + equals + value)
        option = by_name.get(name)
        if option and option.type and not equals and rest:
            before.append(rest.pop(0))
    return before, rest


def as_words(values: Mapping[str, Any]) -> list[str]:
    """Return torchrun's command-line options from their values by field."""
    words = []
    for option in TORCHRUN_OPTIONS:
        if option.field in values:
            is_switch = option.type is None
            words.append(option.name if is_switch else f"{option.name}={values[option.field]}")
    return words
