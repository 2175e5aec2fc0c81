"""Formatting for users: sizes, times, money, ranks, lists, tables, and text that may mean harm."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

K = TypeVar("K")
V = TypeVar("V")

HIDDEN = "****"
"""Shown in place of a secret."""

_LONGEST_COMMAND = 60  # characters that are shown of it
_UP = re.compile(r"\x1b\[(\d{0,3})A")
_MOVE = re.compile(r"(\n|\x1b\[\d{0,3}A)")
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f]")


def format_bytes(count: float) -> str:
    """Format a number of bytes as the page does: ``"1.25 GB"``, ``"12.4 MB"``, ``"7 B"``."""
    unit, name = _byte_unit(count)
    return f"{_digits(count / unit)} {name}"


def format_share(used: float, total: float) -> str:
    """Format how much of something is used, as the page does: ``"12.1 / 40 GB"``."""
    unit, name = _byte_unit(total)
    return f"{_digits(used / unit)} / {_digits(total / unit)} {name}"


def _byte_unit(count: float) -> tuple[float, str]:
    units = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
    return next((each for each in units if count >= each[0]), (1, "B"))


def _digits(value: float) -> str:
    decimals = 2
    if value >= 100:
        decimals = 0
    elif value >= 10:
        decimals = 1
    digits = f"{value:.{decimals}f}"
    return digits.rstrip("0").rstrip(".") if "." in digits else digits


def format_duration(seconds: float) -> str:
    """Format a duration as the sidebar does: ``"12 s"``, ``"3 min"``, ``"2 h 05 min"``, ``"7
    d"``.

    One that a clock which was set back makes negative is none.
    """
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min"
    if whole < 86400:
        return f"{whole // 3600} h {whole // 60 % 60:02} min"
    days, hours = whole // 86400, whole // 3600 % 24
    return f"{days} d {hours} h" if hours else f"{days} d"


def format_elapsed(seconds: float) -> str:
    """Format how long something took, as a strip does: ``"12 ms"``, ``"4.2 s"``, ``"1:02:03"``."""
    if seconds < 0.1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def format_time_ago(seconds: float) -> str:
    """Format the time of day so many seconds ago: ``"16:10:27"``."""
    return time.strftime("%H:%M:%S", time.localtime(time.time() - seconds))


def format_dollars(amount: float) -> str:
    """Format an amount: ``"$1,234.50"``, ``"$0.0123"``, ``"$0.02"``, ``"< $0.0001"``."""
    if 0 < amount < 0.0001:
        return "< $0.0001"  # never show a cost as zero
    if amount >= 0.1 or not amount:
        return f"${amount:,.2f}"
    dollars, _, rest = f"{amount:.4f}".partition(".")
    return f"${dollars}.{rest.rstrip('0').ljust(2, '0')}"


def format_cost(amount: float, unit: str) -> str:
    """Format a cost: ``"$1.20"`` in ``"dollars"``, ``"1.20 GPU hours"`` in that unit."""
    if unit == "dollars":
        return format_dollars(amount)
    return f"< 0.01 {unit}" if 0 < amount < 0.005 else f"{amount:,.2f} {unit}"


def format_count(count: int, noun: str) -> str:
    """Format a number of things: ``"1 node"``, ``"4 local nodes"``, ``"1,024 ranks"``."""
    return f"{count:,} {noun}{'s' * (count != 1)}"


def format_ranks(ranks: Iterable[int]) -> str:
    """Format ranks: ``"rank 3"``, ``"ranks 0-2, 5"``."""
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
    """Join words as in a sentence: ``"a, b and c"``."""
    return " and ".join(filter(None, [", ".join(words[:-1]), *words[-1:]]))


def format_some(words: Sequence[str], most: int) -> str:
    """Join the first of many words: ``"a, b and 3 more"``; one alone is not left out."""
    left = len(words) - most
    return ", ".join(words) if left < 2 else f"{', '.join(words[:most])} and {left} more"


def similar_names(word: str, known: Iterable[str], most: int = 1, cutoff: float = 0.6) -> list[str]:
    """Return those of the known names that ``word`` may have been meant for, the nearest first.

    Capital letters make no difference.
    """
    import difflib  # only errors need it, and it would take a part of each start

    names = {name.casefold(): name for name in known}
    return [names[each] for each in difflib.get_close_matches(word.casefold(), names, most, cutoff)]


def similar_file(path: Path, otherwise: str, folder: Path | None = None) -> str:
    """Return a question for the file beside ``path`` that was meant, or what to say otherwise.

    Parameters
    ----------
    path
        A file as typed.
    otherwise
        What to say if no file beside it has a similar name.
    folder
        Where it is relative to, if that is not the working folder.
    """
    place = folder / path if folder else path
    try:
        if place.exists():
            return otherwise
        beside = [each.name for each in place.parent.iterdir() if each.is_file()]
    except OSError:
        return otherwise
    similar = similar_names(path.name, beside)
    if not similar:
        return otherwise
    meant = similar[0] if path.is_absolute() else path.with_name(similar[0])
    return f"did you mean {meant}?"


def as_sentence(text: str) -> str:
    """Return a text with a full stop, unless it ends with another end of a sentence."""
    text = text.rstrip(".")
    return text if text.endswith(("?", "!")) else f"{text}."


def keys_by_value(values: Mapping[K, V]) -> dict[V, list[K]]:
    """Return which keys have the same value, as ranks of which one sentence says the same."""
    found: dict[V, list[K]] = {}
    for key, value in values.items():
        found.setdefault(value, []).append(key)
    return found


def join_reasons(sentences: Iterable[str]) -> list[str]:
    """Join sentences that end with the same reason: ``"a fails: why"``, ``"a fails; b fails:
    why"``."""
    ends = {each: {each[at.end() :] for at in re.finditer(": ", each)} for each in sentences}
    counted = Counter(end for each in ends.values() for end in each)
    joined: dict[str, list[str]] = {}
    for sentence, own in ends.items():
        reason = max((end for end in own if counted[end] > 1), key=len, default="")
        reason = f": {reason}" if reason else ""
        what = sentence.removesuffix(reason)
        joined.setdefault(reason or what, []).append(what)
    return ["; ".join(each) + reason.removeprefix(each[0]) for reason, each in joined.items()]


def format_command(command: str) -> str:
    """Return the first line of a shell command, without secrets: ``"`pip install -e .`"``."""
    first, more, _ = without_secrets(command.strip()).partition("\n")
    is_cut = more or len(first) > _LONGEST_COMMAND
    return f"`{first[:_LONGEST_COMMAND]}{'…' if is_cut else ''}`"


def shortened(text: str, longest: int) -> str:
    """Return a text of so many characters at most; one that is cut ends in an ellipsis."""
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def last_line(text: str, otherwise: str = "it printed nothing") -> str:
    """Return the last line that a command printed, or ``otherwise`` if it printed nothing."""
    return (text.strip().splitlines() or [otherwise])[-1]


def last_terminal_line(text: str, longest: int = 300) -> str:
    """Return the last line of a program's output that is not blank, as a terminal would show it.

    Text that is overwritten, colours and cursor movements are removed. Of nested progress bars it
    is the outermost, where the cursor is between two updates.
    """
    if not text:
        return ""
    if goes_up(text):
        rows, at = terminal_rows(text)
        lines = rows[at + 1 :] + rows[: at + 1]
    else:
        lines = text.split("\n")
    plain = (_CONTROL.sub("", not_overwritten(line)) for line in reversed(lines))
    return next((line for line in plain if line.strip()), "")[:longest]


def goes_up(text: str) -> bool:
    """Return whether a text moves the cursor of a terminal up, as that of nested bars does."""
    return bool(_UP.search(text))


def terminal_rows(text: str) -> tuple[list[str], int]:
    """Return what is written into each row of a terminal, and the number of the cursor's row.

    What overwrites a row begins with a carriage return.
    """
    rows, at = [""], 0
    for part in _MOVE.split(text):
        up = _UP.fullmatch(part)
        if part != "\n" and not up:
            rows[at] += part
            continue
        at = max(0, at - int(up[1] or 1)) if up else at + 1
        if at < len(rows):
            rows[at] += "\r"
        else:
            rows.append("")
    return rows, at


def not_overwritten(row: str) -> str:
    """Return what was written last into a row of a terminal."""
    return row.rstrip("\r").rpartition("\r")[2]


def aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    """Yield the rows of a table, each column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  ".join(map(str.ljust, row, widths)).rstrip()


_ADDRESS = re.compile(r"(?<![\w+.-])([A-Za-z][\w+.-]*://)([^\s'\"<>`]+)")
_LOGIN = re.compile(r"^[^/?#]*@")
_VALUE = re.compile(r"(?<==)[^&#]+")
_KEY = re.compile(r"(?<=/)(?=[A-Za-z]*\d)(?=\d*[A-Za-z])(?![0-9a-f]+\b)[A-Za-z0-9]{16,}(?=/|$)")


def without_secrets(text: str) -> str:
    """Hide the secrets in a text's addresses, as those of package indexes and repositories.

    They are in the login (``https://user:password@host``), in the query, and in parts of the path
    that look like a key. The fragment (behind ``#``) is a name or a digest, and stays.
    """
    return _ADDRESS.sub(_without_secret, text) if "://" in text else text


def with_secrets(texts: Iterable[str], known: Iterable[str]) -> tuple[str, ...]:
    """Return texts with the secrets that were hidden in them, where the whole text is known."""
    whole = {without_secrets(each): each for each in known}
    return tuple(whole.get(each, each) for each in texts)


def _without_secret(address: re.Match[str]) -> str:
    rest = _LOGIN.sub(f"{HIDDEN}@", address[2])
    rest, mark, fragment = rest.partition("#")
    path, question, query = rest.partition("?")
    if "http" in address[1]:
        path = _KEY.sub(HIDDEN, path)
    shown = path + question + _VALUE.sub(HIDDEN, query)
    return address[1] + shown + mark + fragment


def escaped(value: Any) -> Any:
    """Return data whose strings can be encoded: lone surrogates are escaped."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode(errors="backslashreplace").decode()
    if isinstance(value, dict):
        return {escaped(key): escaped(each) for key, each in value.items()}
    return list(map(escaped, value)) if isinstance(value, list | tuple) else value


def printable(name: str) -> str:
    """Return the name of a file as it may be shown: what is no letter for a terminal is escaped."""
    if name.isprintable():
        return name
    codes = (each if each.isprintable() else ascii(each)[1:-1] for each in name)
    return "".join(codes)


# Colours, and what moves within a screen, as programs draw bars and tables.
_DRAWING = r"\x1b\[(?:[\d;:]*[A-HJKm]|\?25[hl])"
_ESCAPE = (
    r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]?"
    r"|(?:\x1b[\]PX^_]|[\x90\x98\x9d-\x9f])[^\x07\x1b\x9c\n]*(?:\x07|\x1b\\|\x9c)?"
    r"|\x1b[ -/]*[0-~]?"
)
_COMMANDS = re.compile(rf"({_DRAWING})|{_ESCAPE}|[\x00-\x06\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ESCAPES = re.compile(_ESCAPE)
# Control characters, and those that change the direction of the text around them.
_INVISIBLE = re.compile(
    r"[\x00-\x08\x0e-\x1b\x7f-\x84\x86-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ufeff]"
)


def is_terminal(stream: Any) -> bool:
    """Return whether a stream is a terminal."""
    try:
        return bool(stream.isatty())
    except (AttributeError, ValueError):  # an object of a program's that only writes; closed; None
        return False


def for_terminal(text: str) -> str:
    """Return text of a node as a terminal may get it: with colours, and nothing that commands it.

    A terminal does much that a sequence asks for: it writes into the clipboard, changes its title,
    and types answers into the user's shell.
    """
    return _COMMANDS.sub(lambda found: found[1] or "", text)


def plain(text: str) -> str:
    """Return text on one line, without escape sequences and control characters."""
    if text.isascii() and text.isprintable():  # the usual case
        return " ".join(text.split())
    return " ".join(_INVISIBLE.sub("", _ESCAPES.sub("", text)).split())
