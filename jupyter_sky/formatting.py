"""What a user reads: sizes, times, money, ranks, lists, tables, addresses without passwords."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

HIDDEN = "****"
"""What stands for a secret in an address."""


def format_bytes(count: float) -> str:
    """Return a number of bytes as panel and sidebar do: ``"1.25 GB"``, ``"12.4 MB"``, ``"7 B"``."""
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    unit, name = next((each for each in units if count >= each[0]), (1, "B"))
    value = count / unit
    digits = f"{value:.{0 if value >= 100 else 1 if value >= 10 else 2}f}"
    return f"{digits.rstrip('0').rstrip('.') if '.' in digits else digits} {name}"


def format_duration(seconds: float) -> str:
    """Return a time: ``"12 s"``, ``"3 min"``, ``"2.5 h"``, ``"4 d"``."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds / 60:.0f} min"
    if seconds < 48 * 3600:
        return f"{seconds / 3600:.1f} h"
    return f"{seconds / 86400:.0f} d"


def format_dollars(amount: float) -> str:
    """Return an amount of money: ``"$1,234.50"``, ``"$0.0123"``."""
    return f"${amount:,.2f}" if amount >= 0.1 or not amount else f"${amount:.4f}"


def format_count(count: int, noun: str) -> str:
    """Return a number of things: ``"1 node"``, ``"4 local nodes"``."""
    return f"{count} {noun}{'s' * (count != 1)}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Return ranks: ``"rank 3"``, ``"ranks 0-2, 5"``."""
    numbers = sorted(ranks)
    spans: list[list[int]] = []
    for number in numbers:
        if spans and number == spans[-1][1] + 1:
            spans[-1][1] = number
        else:
            spans.append([number, number])
    text = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in spans)
    return f"rank{'s' * (len(numbers) > 1)} {text}"


def format_list(words: Sequence[str]) -> str:
    """Return words as a sentence lists them: ``"a, b and c"``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def as_sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends as a sentence does."""
    text = text.rstrip(".")
    return text if text.endswith(("?", "!")) else f"{text}."


def last_line(text: str, otherwise: str = "it said nothing") -> str:
    """Return the last line of what a command printed, or ``otherwise`` if it printed none."""
    return (text.strip().splitlines() or [otherwise])[-1]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = (cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        yield "  ".join(cells).rstrip()


_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)([^\s'\"<>`]+)")
_LOGIN = re.compile(r"^[^/?#]*@")
_VALUE = re.compile(r"(?<==)[^&#]+")
_KEY = re.compile(r"(?<=/)(?=[A-Za-z]*\d)(?=\d*[A-Za-z])(?![0-9a-f]+\b)[A-Za-z0-9]{16,}(?=/|$)")


def without_secrets(text: str) -> str:
    """Return a text in which no address has a secret: indexes and repositories are given them.

    They stand in the login (``https://user:password@host``), in what follows a ``?``, and in a part
    of the path that is a key by its looks. What follows ``#`` is a name or a digest.
    """
    return _ADDRESS.sub(_without_secret, text) if "://" in text else text


def _without_secret(address: re.Match[str]) -> str:
    rest = _LOGIN.sub(f"{HIDDEN}@", address[2])
    rest, mark, fragment = rest.partition("#")
    path, question, query = rest.partition("?")
    if "http" in address[1]:
        path = _KEY.sub(HIDDEN, path)
    shown = path + question + _VALUE.sub(HIDDEN, query)
    return address[1] + shown + mark + fragment
