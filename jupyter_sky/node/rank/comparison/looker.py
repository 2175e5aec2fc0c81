"""Answers questions about a rank's variables, in a thread of its own that never delays Stop."""

from __future__ import annotations

import array
import contextlib
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_some
from jupyter_sky.node.rank.comparison import digests
from jupyter_sky.node.rank.comparison.describe import describe
from jupyter_sky.node.rank.comparison.parts import (
    Part,
    TakesTooLong,
    find,
    parts,
    random_states,
    within,
)
from jupyter_sky.transport.protocol.inspection import (
    PARTS_COMPARED,
    RANDOM,
    SMALL,
    LookedRank,
    SeenName,
    SeenPart,
)
from jupyter_sky.transport.protocol.rank_messages import LookCommand, Looked

NAMES = 400
"""Names that an answer has; with more, only their number is told."""

PARTS = 2000
"""Parts that an answer has."""

NUMBERS = 1 << 17
"""Numbers of a part that an answer has: a megabyte."""

WITHIN = 280.0
"""Seconds for an answer; the supervisor waits a little longer."""

_TABLE_WITHIN = 10.0  # seconds for all values of a table that cost next to nothing
_VALUE_WITHIN = 1.0  # seconds for one of them


class Looker:
    """Examines the names of a rank.

    Parameters
    ----------
    rank
        The rank.
    names
        The namespace of its shell.
    hidden
        Names that belong to IPython.
    """

    def __init__(self, rank: int, names: Mapping[str, Any], hidden: Mapping[str, Any]) -> None:
        self._rank = rank
        self._names = names
        self._hidden = hidden
        self._runs = 0
        # The parts that were examined last, so that a further question costs nothing.
        self._seen: dict[str, list[SeenPart]] = {}

    def run_begins(self) -> None:
        """Note that a run begins: its changes must not be mistaken for differences."""
        self._runs += 1

    def look(self, command: LookCommand, send: Callable[[Looked], None]) -> None:
        """Start answering a question, and return at once."""

        def answer() -> None:
            with within(_TABLE_WITHIN if command["what"] == "names" else WITHIN):
                seen = self._answer(command)
            send({"looked": command["number"], "seen": seen})

        threading.Thread(target=answer, name="sky-look", daemon=True).start()

    def _answer(self, command: LookCommand) -> LookedRank:
        runs = self._runs
        answer: LookedRank = {
            "rank": self._rank,
            "state": "answered",
            "trouble": "",
            "names": [],
            "more": 0,
            "parts": [],
            "numbers": b"",
            "sampled": False,
        }
        try:
            self._fill(answer, command)
        except SkyError as error:
            answer["trouble"] = str(error)[:300]
        except BaseException as error:
            answer["trouble"] = f"its variables: {type(error).__name__}: {error}"[:300]
        if self._runs != runs and command["what"] != "names":
            self._seen = {}
            answer["state"] = "busy"
        return answer

    def _fill(self, answer: LookedRank, command: LookCommand) -> None:
        names = command["names"]
        match command["what"]:
            case "names":
                found = [name for name in self._found(names) if name in self._names]
                answer["more"] = max(0, len(found) - NAMES)
                is_busy = command["busy"]
                answer["names"] = [self._describe(name, is_busy) for name in found[:NAMES]]
            case "digests":
                self._seen = {}
                wanted = [*names, *([RANDOM] if command["random"] else [])]
                try:
                    answer["names"] = [self._digest(name) for name in wanted if self._has(name)]
                except TakesTooLong:
                    raise SkyError(
                        f"{format_some(wanted, 3)} in {WITHIN:.0f} seconds: ask for fewer names, "
                        "or give a part of one a name, and compare that"
                    ) from None
            case "parts":
                seen = self._parts_of(names[0])
                answer["parts"] = seen[command["start"] :][:PARTS]
            case "numbers":
                # That they differ is known: without numbers, only not by how much.
                troubles = (ValueError, TypeError, ArithmeticError, RuntimeError, TakesTooLong)
                with contextlib.suppress(*troubles):
                    part = find(names[0], self._value(names[0]), names[1])
                    answer["numbers"], answer["sampled"] = _numbers(part)

    def _found(self, names: list[str]) -> list[str]:
        if names:
            return names
        return sorted(
            name
            for name, value in list(self._names.items())
            if not name.startswith("_")
            and not isinstance(value, type(sys))
            and not (name in self._hidden and self._hidden[name] is value)
        )

    def _describe(self, name: str, is_busy: bool) -> SeenName:
        value = self._names.get(name)
        seen = describe(name, value)
        if not is_busy and seen["size"] is not None and seen["size"] <= SMALL:
            with contextlib.suppress(Exception):  # one value does not hide the other names
                with within(_VALUE_WITHIN):
                    found = [each.seen() for each in _some(parts(name, value), 200)]
                if all(each["digest"] or each["sharded"] for each in found):
                    seen["digest"] = _whole(found)
        return seen

    def _digest(self, name: str) -> SeenName:
        try:
            seen = self._parts_of(name)
        except TakesTooLong:  # for all that is asked for together
            raise
        except Exception as error:  # of any kind: the value says itself what it consists of
            raise SkyError(f"{name}: {type(error).__name__}: {error}") from error
        whole = describe(name, self._value(name))
        return {**whole, "digest": _whole(seen), "parts": len(seen)}

    def _parts_of(self, name: str) -> list[SeenPart]:
        known = self._seen  # another question may put a new one in its place meanwhile
        if name not in known:
            known[name] = [
                each.seen() for each in _some(parts(name, self._value(name)), PARTS_COMPARED)
            ]
        return known[name]

    def _has(self, name: str) -> bool:
        return name in self._names or name == RANDOM

    def _value(self, name: str) -> Any:
        return self._names[name] if name in self._names else random_states()


def _some(found: Iterator[Part], most: int) -> Iterator[Part]:
    for _, each in zip(range(most), found, strict=False):
        yield each


def _whole(seen: list[SeenPart]) -> str:
    """Return a digest of all parts."""
    # Sharded parts differ between ranks by design.
    lines = [
        f"{each['path']} {'' if each['sharded'] else each['what']} "
        f"{'' if each['sharded'] else each['digest']}"
        for each in seen
    ]
    return digests.of_text("\n".join(sorted(lines)))  # the order of a dictionary does not matter


def _numbers(value: Any) -> tuple[bytes, bool]:
    """Return the numbers of a value, or a sample of them, as doubles; empty if it has none."""
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if isinstance(value, int | float):
        return _little(array.array("d", [value])), False
    if isinstance(value, list | tuple) and set(map(type, value)) <= {bool, int, float}:
        step = -(-len(value) // NUMBERS) or 1
        return _little(array.array("d", value[::step])), step > 1
    if torch is not None and isinstance(value, torch.Tensor):
        if value.is_complex() or value.layout is not torch.strided:
            return b"", False
        flat = value.detach().reshape(-1)
        step = -(-flat.numel() // NUMBERS) or 1
        chosen = flat[::step].to("cpu", torch.float64)
        return _little(array.array("d", chosen.tolist())), step > 1
    is_numpy = numpy is not None and isinstance(value, numpy.ndarray | numpy.generic)
    if is_numpy and value.dtype.kind in "biuf":
        flat = value.reshape(-1)
        step = -(-flat.size // NUMBERS) or 1
        return flat[::step].astype("<f8").tobytes(), step > 1
    return b"", False


def _little(numbers: array.array[float]) -> bytes:
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()
