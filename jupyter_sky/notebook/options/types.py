"""What the values of options are: how they are read, and what Tab offers for them."""

from __future__ import annotations

import contextlib
import keyword
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from types import ModuleType
from typing import Any

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.api import accelerators
from jupyter_sky.errors import UsageError

_SWITCHES = ("on", "off", "status")
_PROVIDERS = ("local", "ssh", "aws")
_OF_IPYTHON = {"In", "Out", "exit", "get_ipython", "open", "quit"}


@dataclass(frozen=True)
class Surroundings:
    """What there is to choose from, where a line is typed.

    Attributes
    ----------
    variables
        The namespace of the notebook.
    body
        The cell below the line.
    nodes
        The ranks of each node of the current cluster.
    clusters
        The names of all clusters.
    """

    variables: Mapping[str, Any] = field(default_factory=dict)
    body: str = ""
    nodes: tuple[tuple[int, ...], ...] = ()
    clusters: tuple[str, ...] = ()


def _nothing(around: Surroundings) -> Iterable[str]:
    return ()


@dataclass(frozen=True)
class Kind:
    """What an option takes.

    Attributes
    ----------
    takes
        In words, so that ``"four" is not one`` can follow.
    read
        Reads one value; a ValueError says that it is not of this kind, a UsageError why.
    many
        Whether several values may follow, with commas or blanks between them.
    combine
        Makes one of several values; a ValueError says that they do not go together.
    separator
        What is between values in one word, as a regular expression.
    offers
        What Tab completes to.
    """

    takes: str
    read: Callable[[str], Any]
    many: bool = False
    combine: Callable[[list[Any]], Any] = tuple
    separator: str = ","
    offers: Callable[[Surroundings], Iterable[str]] = _nothing

    def split(self, texts: Iterable[str]) -> list[str]:
        """Take apart what was typed as one word."""
        if not self.many:
            return list(texts)
        parts = (part.strip() for text in texts for part in re.split(self.separator, text))
        return [part for part in parts if part]

    def value(self, texts: list[str]) -> Any:
        """Read values; NotOfKind says which of them is none of this kind."""
        values = []
        for text in texts:
            try:
                values.append(self.read(text))
            except UsageError:
                raise
            except ValueError:
                raise NotOfKind(text) from None
        if not self.many:
            return values[0]
        try:
            return self.combine(values)
        except ValueError:
            raise NotOfKind(",".join(texts)) from None


class NotOfKind(ValueError):
    """A text is not what an option takes."""


def _matching(pattern: str, text: str) -> re.Match[str]:
    match = re.fullmatch(pattern, text, re.ASCII)
    if match is None:
        raise ValueError(text)
    return match


def _whole(text: str) -> int:
    return int(_matching(r"0*[1-9]\d*", text)[0])


def _rank(text: str) -> int:
    return int(_matching(r"\d{1,6}", text)[0])


def _word(text: str) -> str:
    return _matching(r"[A-Za-z0-9][A-Za-z0-9._-]*", text)[0]


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


def _dollars(text: str) -> float:
    return _positive(float(_matching(r"\$?(\d+(?:\.\d+)?)\$?", text)[1]))


def _bytes(text: str) -> float:
    number, unit = _matching(r"(\d+(?:\.\d+)?) ?([kMGT]?)B?", text).groups()
    return _positive(float(number) * 1000 ** " kMGT".index(unit or " "))


def _positive(number: float) -> float:
    if not 0 < number < math.inf:
        raise ValueError(number)
    return number


def _gpu(text: str) -> str:
    accelerators.parse(text)  # its sentence names what is near
    return text


def _host(text: str) -> str:
    return _matching(r"(?:[^@\s]+@)?[\w.:\[\]-]+", text)[0]


def _package(text: str) -> str:
    return _matching(r"[\w.~/].*", text)[0]


def _provider(text: str) -> str:
    if text not in _PROVIDERS:
        raise ValueError(text)
    return text


def _variable(text: str) -> str:
    if not text.isidentifier() or keyword.iskeyword(text):
        raise ValueError(text)
    return text


def _ranks(text: str) -> str | range:
    if text in ("all", "head"):
        return text
    first, last = _matching(r"(\d{1,6})(?:-(\d{1,6}))?", text).groups()
    ranks = range(int(first), int(last or first) + 1)
    if not ranks:
        raise ValueError(text)
    return ranks


def _shown(text: str) -> str | range:
    return text if text == "none" else _ranks(text)


def _one_selection(parts: list[Any]) -> Any:
    words = [part for part in parts if isinstance(part, str)]
    if not words:
        return tuple(sorted({rank for ranks in parts for rank in ranks}))
    if len(parts) > 1:
        raise ValueError("a word stands alone")
    return words[0]


def _distinct(names: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def _distinct_or_none(names: list[str]) -> tuple[str, ...]:
    if "none" in names:
        if len(names) > 1:
            raise ValueError("none stands alone")
        return ()
    return _distinct(names)


def _switch(text: str) -> str:
    if text not in _SWITCHES:
        raise ValueError(text)
    return text


def _gpu_names(around: Surroundings) -> Iterable[str]:
    return accelerators.names()


def _plugin_names(around: Surroundings) -> Iterable[str]:
    from jupyter_sky import plugins

    return [*plugins.__all__, "none"]


def _variable_names(around: Surroundings) -> Iterable[str]:
    return [
        name
        for name, value in around.variables.items()
        if not name.startswith("_")
        and name not in _OF_IPYTHON
        and not isinstance(value, ModuleType)
    ]


def _result_names(around: Surroundings) -> Iterator[str]:
    """Offer what the cell defines, and then what there is."""
    with contextlib.suppress(SyntaxError):
        yield from sorted(analyse(around.body).writes)
    yield from _variable_names(around)


def _rank_numbers(around: Surroundings) -> list[str]:
    return [str(rank) for ranks in around.nodes for rank in ranks]


def _rank_lists(around: Surroundings) -> Iterator[str]:
    yield from ("all", "head")
    numbers = _rank_numbers(around)
    if len(numbers) > 1:
        yield f"{numbers[0]}-{numbers[-1]}"
    yield from (f"{ranks[0]}-{ranks[-1]}" for ranks in around.nodes if len(ranks) > 1)
    yield from numbers


WHOLE = Kind("a whole number of at least 1", _whole)
NODES = Kind("a whole number of at least 1 (`%sky down` ends the cluster)", _whole)
RANK = Kind("the number of a rank", _rank, offers=_rank_numbers)
SWITCH = Kind("`on`, `off` or `status`", _switch, offers=lambda around: _SWITCHES)
AMOUNT = Kind('a number, with a + for "or more"', _amount)
TIME = Kind("a time in seconds, or with s, m, h or d behind it", _seconds)
SIZE = Kind("a size in bytes, or with MB or GB behind it", _bytes)
DOLLARS = Kind("an amount in dollars", _dollars)
WORD = Kind("a name of letters, digits, `.`, `_` and `-`", _word)
FILE = Kind("the name of a file", lambda text: text)
CLUSTER = replace(WORD, offers=lambda around: around.clusters)
GPU = Kind("the name of a GPU, with :COUNT behind it for more than one", _gpu, offers=_gpu_names)
PROVIDER = Kind("local, ssh or aws", _provider, offers=lambda around: _PROVIDERS)
HOSTS = Kind("names of machines", _host, many=True, combine=_distinct)
PACKAGES = Kind(
    "packages as pip writes them",
    _package,
    many=True,
    combine=_distinct,
    # A comma within a requirement (`torch>=2,<3`, `uvicorn[standard,http]`) separates nothing.
    separator=r",(?![^\[]*\])(?=\s*[A-Za-z]|$)",
)
PLUGINS = Kind(
    "names of plugins, or `none`",
    _variable,
    many=True,
    combine=_distinct_or_none,
    offers=_plugin_names,
)
NAMES = Kind("names of variables", _variable, many=True, combine=_distinct, offers=_variable_names)
RESULTS = replace(NAMES, offers=_result_names)
NAMES_OR_NONE = Kind(
    "names of variables, or `none`",
    _variable,
    many=True,
    combine=_distinct_or_none,
    offers=_variable_names,
)
RANKS = Kind(
    "`all`, `head`, or numbers of ranks",
    _ranks,
    many=True,
    combine=_one_selection,
    offers=_rank_lists,
)
SHOWN = Kind(
    "`all`, `head`, `none`, or numbers of ranks",
    _shown,
    many=True,
    combine=_one_selection,
    offers=lambda around: ["none", *_rank_lists(around)],
)
