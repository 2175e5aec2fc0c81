"""The types of option values: how each is parsed, and what Tab completes for it."""

from __future__ import annotations

import contextlib
import keyword
import math
import os
import re
import shlex
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.api import accelerators
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options import environment, packages
from jupyter_sky.notebook.options.option_type import CompletionContext, OptionType, no_completions
from jupyter_sky.providers.buckets.volume import Volume

_SWITCHES = ("on", "off", "status")
_PROVIDERS = ("local", "ssh", "aws", "slurm")
_NOT_SBATCH = {"--nodes", "-N", "--ntasks", "-n", "--ntasks-per-node", "--output", "-o", "--wrap"}
_NOT_SBATCH |= {"--array", "-a", "--comment", "--requeue", "--wait", "-W", "--test-only"}
_NOT_SBATCH |= {"--clusters", "--cluster", "-M"}
"""Options of sbatch that clusters set themselves, or cannot be made with."""

_DISPLAYS = ("rich", "safe")
_SELECTIONS = ("cheapest", "first")
_PIP_ACTIONS = ("install",)
_IPYTHON_NAMES = {"In", "Out", "exit", "get_ipython", "open", "quit"}


def _matching(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None:
        raise ValueError(text)
    return match


def _port(text: str) -> int:
    number = _whole(text)
    if number > 65535:
        raise ValueError
    return number


def _whole(text: str) -> int:
    return int(_matching(r"0*[1-9]\d*", text)[0])


def _word(text: str) -> str:
    return _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)[0]


def _job_time(text: str) -> str:
    return _matching(r"(\d+-)?\d+(:\d+){0,2}", text)[0]


def _sbatch(text: str) -> str:
    words = shlex.split(text)
    names = {word.partition("=")[0] if word.startswith("--") else word[:2] for word in words}
    if not names & _NOT_SBATCH and words[:1] and words[0].startswith("-"):
        return text
    raise ValueError(text)


def _features(text: str) -> str:
    return _matching(r"[\w.&|()\[\]*:,+-]+", text)[0]


def _amount(text: str) -> str:
    match = _matching(r"(?i)(\d+(?:\.\d+)?) ?(?:GB?|GiB)?(\+?)", text)
    if not float(match[1]):
        raise ValueError(text)
    return match[1] + match[2]


def _seconds(text: str) -> float:
    number = r"(\d+(?:\.\d+)?)"
    match = _matching(rf"(?:{number}d)?(?:{number}h)?(?:{number}m)?(?:{number}s?)?", text)
    days, hours, minutes, seconds = (float(part or 0) for part in match.groups())
    return _positive(86400 * days + 3600 * hours + 60 * minutes + seconds)


def _as_time(seconds: float) -> str:
    text = ""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        count, seconds = divmod(seconds, length)
        text += f"{count:.0f}{unit}" if count else ""
    return f"{text}{seconds:.12g}s" if seconds else text


def _dollars(text: str) -> float:
    return _positive(float(_matching(r"\$?(\d+(?:\.\d+)?)\$?", text)[1]))


def _bytes(text: str) -> float:
    number, unit = _matching(r"(\d+(?:\.\d+)?) ?([kMGT]?)B?", text).groups()
    return _positive(float(number) * 1000 ** " kMGT".index(unit or " "))


def _positive(number: float) -> float:
    if not 0 < number < math.inf:
        raise ValueError(number)
    return number


def _variable_value(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    return (_variable(name), value) if equals else _secret(name)


def _secret(text: str) -> tuple[str, str]:
    if "=" in text:
        raise UsageError(
            "--secret takes names only, so that no value is saved in a notebook or seen by others: "
            "set the variable here, and name it."
        )
    name = _variable(text)
    if name not in os.environ:
        raise UsageError(f"there is no variable {name} in the environment here: set it first.")
    return name, os.environ[name]


def _gpu(text: str) -> str:
    accelerators.parse(text)  # its UsageError names similar GPUs
    return text


def _host(text: str) -> str:
    return _matching(r"(?:[^@\s]+@)?[\w.:\[\]-]+", text)[0]


def _place(text: str) -> str:
    return _matching(r"[\w./~][\w./:@~+-]*", text)[0]


def _module(text: str) -> str:
    return _matching(r"[\w.+][\w.+/-]*", text)[0]


def _volume(text: str) -> str:
    return str(Volume.parse(text))  # its UsageError says what is wrong


def _address(text: str) -> str:
    return _matching(r"(https?|file)://\S+", text)[0]


def _one_of(words: tuple[str, ...]) -> Callable[[str], str]:
    def parse(text: str) -> str:
        if text not in words:
            raise ValueError(text)
        return text

    return parse


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(text)
    return text


def _result(text: str) -> str:
    name, colon, part = text.partition(":")
    if colon and part != "state":
        raise ValueError(text)
    return _variable(name) + colon + part


def _ranks(text: str) -> str | range:
    if text in ("all", "head"):
        return text
    first, last = _matching(r"(\d{1,6})(?:-(\d{1,6}))?", text).groups()
    ranks = range(int(first), int(last or first) + 1)
    if not ranks:
        raise ValueError(text)
    return ranks


def _shown_ranks(text: str) -> str | range:
    return text if text == "none" else _ranks(text)


def _combine_ranks(parts: list[Any]) -> Any:
    words = [part for part in parts if isinstance(part, str)]
    if not words:
        return tuple(sorted({rank for ranks in parts for rank in ranks}))
    if len(parts) > 1:
        raise ValueError("`all` or `head` beside numbers")
    return words[0]


def _distinct(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _distinct_or_none(names: list[str]) -> tuple[str, ...]:
    if "none" in names:
        if len(names) > 1:
            raise ValueError("`none` beside names")
        return ()
    return _distinct(names)


def _gpu_names(context: CompletionContext) -> Iterable[str]:
    return accelerators.names()


def _plugin(text: str) -> str:
    return _matching(r"[a-z]\w*(=[\w.+-]+)?", text)[0]


def _plugin_names(context: CompletionContext) -> Iterable[str]:
    from jupyter_sky import plugins

    return [*plugins.__all__, "none"]


def _variable_names(context: CompletionContext) -> Iterable[str]:
    return [
        name
        for name, value in context.variables.items()
        if not name.startswith("_")
        and name not in _IPYTHON_NAMES
        and not isinstance(value, ModuleType)
    ]


def _result_names(context: CompletionContext) -> Iterator[str]:
    """Return names that the cell binds, followed by those of the notebook."""
    with contextlib.suppress(SyntaxError):
        yield from sorted(analyse(context.body).writes)
    yield from _variable_names(context)


def _rank_numbers(context: CompletionContext) -> list[str]:
    return [str(rank) for ranks in context.nodes for rank in ranks]


def _rank_lists(context: CompletionContext) -> Iterator[str]:
    yield from ("all", "head")
    numbers = _rank_numbers(context)
    if len(numbers) > 1:
        yield f"{numbers[0]}-{numbers[-1]}"
    yield from (f"{ranks[0]}-{ranks[-1]}" for ranks in context.nodes if len(ranks) > 1)
    yield from numbers


PORT = OptionType("a port from 1 to 65535", _port)
WHOLE = OptionType("a whole number of at least 1", _whole)
NODES = OptionType("a whole number of at least 1 (`%sky down` ends the cluster)", _whole)
SWITCH = OptionType(
    "`on`, `off` or `status`", _one_of(_SWITCHES), completions=lambda context: _SWITCHES
)
AMOUNT = OptionType('a number, with a + for "or more"', _amount)
TIME = OptionType("a time in seconds, or with s, m, h or d behind it", _seconds, write=_as_time)
SIZE = OptionType("a size in bytes, or with MB or GB behind it", _bytes)
DOLLARS = OptionType("an amount in dollars", _dollars)
WORD = OptionType("a name of letters, digits, `.`, `_` and `-`", _word)
JOB_TIME = OptionType(
    "a time as Slurm writes it: minutes, or days-hours:minutes:seconds", _job_time
)
SBATCH = OptionType(
    "options of sbatch, but none for nodes, tasks, comment, output, array, requeue, wait, clusters",
    _sbatch,
    begins_with_hyphens=True,
)
GRES = OptionType("resources as Slurm writes them, like `shard:2`", _features)
FEATURES = OptionType("features as Slurm writes them", _features)
REGIONS = replace(
    WORD,
    description="names of regions, with commas between several",
    many=True,
    combine=lambda names: ",".join(_distinct(names)),
)
PLACE = OptionType("a name, a path or an address of the nodes", _place)
FILE = OptionType("the name of a file", lambda text: text)
FOLDER = OptionType("the name of a folder", lambda text: text)
ENVIRONMENT = OptionType(
    "the name of a uv.lock, pyproject.toml, requirements.txt or environment.yml, `imports` or "
    "`none`",
    environment.parse,
    completions=environment.completions,
)
INDEXES = OptionType("addresses of package indexes", _address, many=True, combine=_distinct)
SCRIPT = replace(
    FILE, completions=lambda context: sorted(str(file) for file in Path().glob("*.py"))
)
PROGRAM = replace(
    FILE,
    completions=lambda context: sorted(
        str(file) for kind in ("*.ipynb", "*.py") for file in Path().glob(kind)
    ),
)
PATHS = OptionType(
    "names of files and folders",
    lambda text: text,
    many=True,
    separator=r"(?!)",
    completions=lambda context: sorted(str(path) for path in Path().glob("[!.]*")),
)
NODE_PATHS = replace(PATHS, completions=no_completions)
TASK_FILE = replace(
    FILE,
    description="the name of a YAML file",
    completions=lambda context: sorted(str(file) for file in Path().glob("*.y*ml")),
)
VOLUMES = OptionType(
    "where data is and where it goes, as in s3://bucket/prefix:/data[:ro]",
    _volume,
    many=True,
    combine=_distinct,
)
INCLUDED = replace(PATHS, combine=_distinct)
FOLDERS = replace(INCLUDED, description="names of folders")
LOCAL_PATHS = (FOLDER, FOLDERS, ENVIRONMENT, INCLUDED)
"""What `CellOptions` have as paths of this computer, from the current folder."""
VARIABLES = OptionType(
    "NAME=VALUE, or the NAME of a variable that is set here",
    _variable_value,
    many=True,
    combine=dict,
    separator=r"(?!)",
)
RANK_VARIABLES = replace(VARIABLES, combine=tuple)
SECRETS = OptionType(
    "names of variables that are set here, whose values nobody sees",
    _secret,
    many=True,
    combine=dict,
)
CLUSTER = replace(WORD, completions=lambda context: context.clusters)
GPU = OptionType(
    "the name of a GPU, with :COUNT behind it for more than one", _gpu, completions=_gpu_names
)
PROVIDER = OptionType(
    "local, ssh, aws or slurm", _one_of(_PROVIDERS), completions=lambda context: _PROVIDERS
)
PROVIDERS = replace(
    PROVIDER,
    description="local, ssh, aws or slurm, with commas between several",
    many=True,
    combine=lambda names: ",".join(_distinct(names)),
)
SELECTION = OptionType(
    "cheapest or first", _one_of(_SELECTIONS), completions=lambda context: _SELECTIONS
)
DISPLAY = OptionType("rich or safe", _one_of(_DISPLAYS), completions=lambda context: _DISPLAYS)
HOST = OptionType("the name of a machine, as in me@login1", _host)
HOSTS = OptionType("names of machines", _host, many=True, combine=_distinct)
MODULES = OptionType("names of modules", _module, many=True, combine=_distinct)
PIP_ACTION = OptionType(
    "`install`", _one_of(_PIP_ACTIONS), completions=lambda context: _PIP_ACTIONS
)
PACKAGES = OptionType(
    "packages as pip writes them",
    packages.parse,
    many=True,
    combine=_distinct,
    # A comma within a requirement (`torch>=2,<3`, `uvicorn[standard,http]`) is not a separator.
    separator=r",(?![^\[]*\])(?=\s*[A-Za-z]|$)",
)
PLUGINS = OptionType(
    "names of plugins, some with an argument as in keras=torch, or `none`",
    _plugin,
    many=True,
    combine=_distinct_or_none,
    completions=_plugin_names,
)
NAMES = OptionType(
    "names of variables", _variable, many=True, combine=_distinct, completions=_variable_names
)
RESULTS = replace(NAMES, parse=_result, completions=_result_names)
NAMES_OR_NONE = OptionType(
    "names of variables, or `none`",
    _variable,
    many=True,
    combine=_distinct_or_none,
    completions=_variable_names,
)
RANKS = OptionType(
    "`all`, `head`, or numbers of ranks",
    _ranks,
    many=True,
    combine=_combine_ranks,
    completions=_rank_lists,
)
SHOWN = OptionType(
    "`all`, `head`, `none`, or numbers of ranks",
    _shown_ranks,
    many=True,
    combine=_combine_ranks,
    completions=lambda context: ["none", *_rank_lists(context)],
)
