"""Parses ``%%sky`` and ``%sky`` lines, and writes the line that starts a cluster."""

from __future__ import annotations

import re
import shlex
from argparse import Namespace
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import lru_cache
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_names
from jupyter_sky.notebook.options.commands import COMMANDS, OF_A_CELL
from jupyter_sky.notebook.options.definitions import (
    CELL_OPTIONS,
    CLUSTER_OPTIONS,
    CellOptions,
)
from jupyter_sky.notebook.options.parser import HelpRequested, Parser
from jupyter_sky.notebook.options.torchrun import DECIDED, as_words, split_line

_NO_OPTIONS = CellOptions()

_WITH_COMMENT = re.compile(
    r"""(?P<words> (?: \\. | '[^']*' | "(?:\\.|[^"\\])*" | [^'"\\] )*? ) (?<!\S)\#""", re.VERBOSE
)
"""A line with a comment: a ``#`` that begins a word, outside quotation marks."""

_ELSEWHERE = {
    "cancel": "interrupt",
    "check": "doctor",
    "clusters": "status",
    "cost-report": "costs",
    "exec": "launch task.yaml",
    "gpu": "status",
    "gpus": "status",
    "jobs": "status",
    "list": "status",
    "ls": "status",
    "nvidia-smi": "status",
    "ps": "status",
    "queue": "status",
    "show-gpus": "offers",
    "ssh": "shell",
    "top": "status",
}
"""What commands of SkyPilot and other tools, which users may type by habit, are called here."""


def parse_cell(line: str, defaults: CellOptions = _NO_OPTIONS) -> CellOptions:
    """Parse a ``%%sky`` line.

    Parameters
    ----------
    line
        What follows ``%%sky``.
    defaults
        The values of options that the line leaves out.

    Raises
    ------
    UsageError
        Something cannot be used; the sentence says what to type instead.
    HelpRequested
        The line has ``-h``.
    """
    options = _parsed(line, defaults)
    # The name of a variable stands for the value that it has now.
    return _parsed.__wrapped__(line, defaults) if options.variable else options


@lru_cache(maxsize=16)  # one that is attached to is asked for several parts of it
def parse_recorded(line: str) -> CellOptions:
    """Parse the line with which a cluster was started, as `as_line` wrote it.

    That its options go together was checked before it started; settings may have added others.

    Raises
    ------
    UsageError
        If this version does not know one of its options.
    """
    return replace(_NO_OPTIONS, **_values(line))


def parse_line(line: str) -> tuple[str, CellOptions | Namespace]:
    """Parse a ``%sky`` line.

    Parameters
    ----------
    line
        What follows ``%sky``.

    Returns
    -------
    tuple
        The command and its arguments: for ``up``, the options of a cluster; for others, a namespace
        with an attribute for each argument, which is None, or False for a switch, if omitted.

    Raises
    ------
    UsageError
        Something cannot be used; the sentence says what to type instead.
    HelpRequested
        The line has ``-h``, or is empty.
    """
    return parse_words(_words(line))


def parse_words(given: Sequence[str]) -> tuple[str, CellOptions | Namespace]:
    """Parse the words of a ``%sky`` line, like `parse_line`."""
    command, *words = given or ["-h"]
    if command in ("-h", "--help", "help") and words[:1] and words[0] in COMMANDS:
        command, words = words[0], ["-h"]
    elif command in ("-h", "--help", "help"):
        raise HelpRequested(_overview())
    if command not in COMMANDS:
        raise UsageError(_unknown_command(command, words))
    help, arguments = COMMANDS[command]
    parser = Parser(f"%sky {command}", help, arguments)
    if command == "torchrun":
        parser.usage = "%(prog)s [options] SCRIPT [the script's arguments]"
        return command, _torchrun_line(parser, words)
    behind: list[str] = []
    if command == "run":
        parser.usage = "%(prog)s FILE [options] [-- arguments of the notebook or script]"
        parser.beyond = "arguments of the notebook or script stand behind `--`"
        if "--" in words:
            at = words.index("--")
            words, behind = words[:at], words[at + 1 :]
    values = parser.read(words)
    if command == "up":
        return command, _cell_options(values)
    for argument in arguments:
        values.setdefault(argument.field, None if argument.type else False)
    if command in OF_A_CELL:
        values["options"] = _cell_options(_of_a_cell(values))
    if command == "run":
        values["arguments"] = behind
    return command, Namespace(**values)


def as_line(options: CellOptions) -> str:
    """Return what to type after ``%%sky`` to start a cluster with these options.

    Environment variables are left out: their values may be secret.
    """
    words = []
    for argument in CLUSTER_OPTIONS:
        if argument.field not in options.given or argument.name == "--variable":
            continue
        value = options.given[argument.field]
        words.append(argument.name)
        if argument.name in ("--include", "--wheels"):  # file names may contain commas
            words += map(shlex.quote, value)
            continue
        if argument.type is not None:
            words.append(shlex.quote(argument.type.write(value)))
    return " ".join(words)


@lru_cache(maxsize=64)  # cells are run repeatedly, and argparse costs as much as a round trip
def _parsed(line: str, defaults: CellOptions) -> CellOptions:
    return _cell_options(_values(line), defaults)


def _values(line: str) -> dict[str, Any]:
    """Return the values of the options in a ``%%sky`` line."""
    parser = Parser("%%sky", "run this cell on a cluster", CELL_OPTIONS)
    return parser.read(_with_memory(_words(line)))


def _cell_options(values: Mapping[str, Any], defaults: CellOptions = _NO_OPTIONS) -> CellOptions:
    options = replace(defaults, **values)
    if options.hosts and options.provider and "ssh" not in options.provider.split(","):
        raise UsageError(
            f"--hosts are machines to reach over SSH, but the provider is {options.provider}: "
            "type `--provider ssh`, or leave out --hosts."
        )
    return options


def _torchrun_line(parser: Parser, words: Sequence[str]) -> Namespace:
    """Split a torchrun line into words for the cluster, for torchrun, and for the script."""
    before, rest = split_line(words, parser.arguments)
    if decided := [word for word in before if word.partition("=")[0] in DECIDED]:
        raise UsageError(
            f"{decided[0].partition('=')[0]} differs from node to node, and `%sky torchrun` sets "
            "it: leave it out."
        )
    values = parser.read([*before, *rest[:1]])
    return Namespace(
        options=_cell_options(_of_a_cell(values)),
        nnodes=values.get("nnodes"),
        standalone="standalone" in values,
        is_file=not {"module", "no_python"} & values.keys(),
        rdzv_backend=values.get("rdzv_backend"),
        rdzv_conf=values.get("rdzv_conf"),
        torchrun=as_words({name: values[name] for name in values if name != "rdzv_conf"}),
        script=values["script"],
        arguments=rest[1:],
    )


def _of_a_cell(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the typed values of options that cells also have."""
    names = {each.name for each in fields(CellOptions)}
    # An empty value may have been typed, as in `--plugin none`. `--env` of a task file sets
    # variables, and is not the cell option.
    return {
        name: value
        for name, value in values.items()
        if name in names
        and value is not None
        and value is not False
        and not isinstance(value, dict)
    }


def _with_memory(words: Sequence[str]) -> list[str]:
    """Replace ``--memory`` without a number by ``--show-memory``."""
    return [
        "--show-memory" if word == "--memory" and after.startswith("-") else word
        for word, after in zip(words, [*words[1:], "-"], strict=False)
    ]


def _words(line: str) -> list[str]:
    """Split a line as a shell does, without a comment at its end."""
    commented = _WITH_COMMENT.match(line)
    try:
        return shlex.split(commented["words"] if commented else line)
    except ValueError:
        raise UsageError(f"a quotation mark is missing in `{line.strip()}`: close it.") from None


def _overview() -> str:
    parser = Parser("%%sky", "run a cell on a cluster", CELL_OPTIONS)
    commands = "".join(f"  {name:<12}{help}\n" for name, (help, _) in COMMANDS.items())
    return f"{parser.format_help()}\n%sky COMMAND (`%sky COMMAND -h` for more):\n{commands}"


def _unknown_command(word: str, words: Sequence[str]) -> str:
    if word.startswith("-"):
        line = shlex.join([word, *words])
        return f"options go above a cell or behind a command: `%%sky {line}` or `%sky up {line}`."
    near = similar_names(word, COMMANDS)
    if word in _ELSEWHERE:
        instead = f"did you mean `%sky {_ELSEWHERE[word]}`?"
    elif near:
        examples = [each.example for each in COMMANDS[near[0]][1] if each.required]
        instead = f"did you mean `%sky {shlex.join([*near, *(words or examples)])}`?"
    else:
        instead = "`%sky -h` lists them."
    return f"%sky has no command {word}: {instead}"
