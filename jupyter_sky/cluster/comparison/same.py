"""Says in a sentence where the ranks' values of a name first differ.

Digests of whole values are compared first. Only if they differ, one rank of each kind is asked for
its parts, and for the numbers of the first different part.
"""

from __future__ import annotations

import array
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from jupyter_sky.formatting import (
    format_bytes,
    format_count,
    format_list,
    format_ranks,
    keys_by_value,
)
from jupyter_sky.transport.protocol.inspection import (
    PARTS_COMPARED,
    RANDOM,
    LookedRank,
    Question,
    SeenName,
    SeenPart,
)

_PAGES = 60  # most parts to search for the first difference
_LONGEST = 160


class Ask(Protocol):
    """Asks ranks a question, by default all of them."""

    def __call__(
        self, what: Question, names: Sequence[str], ranks: Sequence[int] = (), start: int = 0
    ) -> list[LookedRank]:
        """Return their answers, in order."""


@dataclass(frozen=True)
class Compared:
    """The result of comparing names on the ranks.

    Attributes
    ----------
    lines
        A sentence for each name.
    differ
        The names whose values differ between ranks.
    missing
        The names that no rank has.
    """

    lines: tuple[str, ...]
    differ: tuple[str, ...]
    missing: tuple[str, ...]


def compare(ask: Ask, names: Sequence[str]) -> Compared:
    """Compare names on the ranks.

    Parameters
    ----------
    ask
        Asks the ranks.
    names
        The names; `RANDOM` stands for the states of random number generators.
    """
    looked = ask("digests", [name for name in names if name != RANDOM])
    ranks = [each["rank"] for each in looked]
    lines, differ, missing = [], [], []
    for name in names:
        seen = {
            each["rank"]: one for each in looked for one in each["names"] if one["name"] == name
        }
        line, is_same = _compared(ask, name, seen, ranks)
        lines.append(f"{name}: {line}")
        if not is_same:
            differ.append(name)
        if not seen:
            missing.append(name)
    return Compared(tuple(lines), tuple(differ), tuple(missing))


def _compared(
    ask: Ask, name: str, seen: dict[int, SeenName], ranks: Sequence[int]
) -> tuple[str, bool]:
    if not seen:
        return "no rank has this name", False
    where = ""
    if missing := [rank for rank in ranks if rank not in seen]:
        have = "has it, " if len(seen) == 1 else "have it, "
        does = "does not" if len(missing) == 1 else "do not"
        where = f"{format_ranks(seen)} {have}{format_ranks(missing)} {does}"
    if len(seen) == 1:
        return where or f"there is only {format_ranks(seen)}", not missing
    groups = keys_by_value({rank: each["digest"] for rank, each in seen.items()})
    if len(groups) == 1:
        first = next(iter(seen.values()))
        line = _all_alike(ask, name, format_ranks(seen), min(seen), first)
        return "; ".join(filter(None, [where, line])), not missing
    line = _difference(ask, name, seen, groups)
    return "; ".join(filter(None, [where, line])), False


def _extent(seen: SeenName) -> str:
    size = f", {format_bytes(seen['size'])}" if seen["size"] else ""
    first = "the first " if seen["parts"] >= PARTS_COMPARED else ""
    return f"{first}{format_count(seen['parts'], 'part')}{size}"


def _all_alike(ask: Ask, name: str, ranks: str, rank: int, seen: SeenName) -> str:
    """Say that ranks have the same, or that nothing of it can be compared."""
    parts = _all_parts(ask, name, [rank], seen["parts"])[rank]
    left = _uncompared(parts)
    if left and not any(each["digest"] or each["sharded"] for each in parts):
        return f"{parts[0]['what']} on {ranks}, which cannot be compared"
    return f"the same on {ranks} ({_extent(seen)})" + (f", but for {left}" if left else "")


def _uncompared(parts: Sequence[SeenPart]) -> str:
    """Say what was not compared: pieces of sharded tensors, and values without a digest."""
    split = [each for each in parts if each["sharded"]]
    opaque = [each for each in parts if not each["digest"] and not each["sharded"]]
    said = []
    if split:
        are = "is sharded: each rank has a piece of its own"
        if len(split) > 1:
            are = "are sharded: each rank has pieces of its own"
        said.append(f"{format_count(len(split), 'part')} that {are}")
    if opaque:
        path = _short(opaque[0]["path"])
        more = f" and {len(opaque) - 1} more" if len(opaque) > 1 else ""
        said.append(f"{path}{more}, which cannot be compared")
    return format_list(said) if said else ""


def _all_parts(ask: Ask, name: str, ranks: Sequence[int], count: int) -> dict[int, list[SeenPart]]:
    """Return the parts of a name on some ranks, up to the limit."""
    found: dict[int, list[SeenPart]] = {rank: [] for rank in ranks}
    for _ in range(_PAGES):
        start = max(len(parts) for parts in found.values())
        answers = {each["rank"]: each["parts"] for each in ask("parts", [name], ranks, start)}
        for rank in ranks:
            found[rank] += answers.get(rank, [])
        if not any(answers.values()) or start + len(next(iter(answers.values()))) >= count:
            break
    return found


def _difference(
    ask: Ask, name: str, seen: dict[int, SeenName], groups: dict[str, list[int]]
) -> str:
    """Say where ranks first differ; ``groups`` has those with equal digests."""
    alike = {ranks[0]: ranks for ranks in groups.values()}
    count = max(each["parts"] for each in seen.values())
    tables = {
        rank: {part["path"]: part for part in parts}
        for rank, parts in _all_parts(ask, name, list(alike), count).items()
    }
    paths = dict.fromkeys(path for table in tables.values() for path in table)
    different = [path for path in paths if len(_kinds(path, tables)) > 1]
    if not different:
        return f"{format_ranks(seen)} differ, in parts beyond the first {len(paths):,}"
    path = different[0]
    kinds = _kinds(path, tables)
    ranks = {kind: sorted(r for rep in reps for r in alike[rep]) for kind, reps in kinds.items()}
    order = sorted(kinds, key=lambda kind: (-len(ranks[kind]), ranks[kind][0]))
    line = _who([ranks[kind] for kind in order], _short(path))
    parts = (tables[kinds[kind][0]].get(path) for kind in order)
    whats = [part["what"] if part else "" for part in parts]
    if len(set(whats)) > 1:
        pairs = zip(whats, order, strict=True)
        said = [f"{what or 'nothing'} on {format_ranks(ranks[kind])}" for what, kind in pairs]
        line += f" ({'; '.join(said[:4])}{'; …' * (len(said) > 4)})"
    elif apart := _apart(ask, name, path, kinds[order[0]][0], kinds[order[1]][0]):
        line += f" ({apart})"
    if len(different) > 1:
        line += f", and in {len(different) - 1:,} more of {len(paths):,} parts"
    return line


def _kinds(path: str, tables: dict[int, dict[str, SeenPart]]) -> dict[tuple[str, str], list[int]]:
    """Group ranks by the value that they have there."""
    kinds: dict[tuple[str, str], list[int]] = {}
    for rank, table in tables.items():
        part = table.get(path)
        key = ("", "") if part is None else (part["what"], part["digest"])
        if part is not None and part["sharded"]:
            key = ("sharded", "")
        kinds.setdefault(key, []).append(rank)
    return kinds


def _who(groups: Sequence[Sequence[int]], path: str) -> str:
    """Say which ranks differ from which, the largest group first."""
    most, *others = groups
    if len(most) == 1 and len(groups) > 2:
        everyone = sorted(rank for group in groups for rank in group)
        return f"{format_ranks(everyone)} all differ from each other in {path}"
    rest = sorted(rank for group in others for rank in group)
    if len(most) == 1:  # two ranks: compare the other one with the head
        most, rest = sorted([list(most), rest])
    verb = "differs" if len(rest) == 1 else "differ"
    return f"{format_ranks(rest)} {verb} from {format_ranks(most)} in {path}"


def _apart(ask: Ask, name: str, path: str, one: int, other: int) -> str:
    """Describe how far apart the numbers of two ranks are; empty if there are none."""
    answers = {each["rank"]: each for each in ask("numbers", [name, path], [one, other])}
    first, second = (_doubles(answers[rank]["numbers"]) for rank in (one, other))
    if not first or len(first) != len(second):
        return ""
    # Two NaNs are equal, and so are two infinities, whose difference is none.
    pairs = [(a, b) for a, b in zip(first, second, strict=True) if a != b and (a == a or b == b)]
    broken = sum(a != a or b != b for a, b in pairs)
    apart = [abs(a - b) for a, b in pairs if a == a and b == b]
    said = []
    if broken:
        said.append(f"{format_count(broken, 'number')} NaN on one side only")
    if endless := sum(map(math.isinf, apart)):
        said.append(f"{format_count(endless, 'number')} infinitely far apart")
    if largest := max((each for each in apart if math.isfinite(each)), default=0.0):
        least = "at least " if answers[one]["sampled"] else ""
        said.append(f"max difference {least}{largest:.2g}")
    return ", ".join(said)


def _doubles(data: bytes) -> list[float]:
    numbers = array.array("d", data[: len(data) // 8 * 8])
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tolist()


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}…"
