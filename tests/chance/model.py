"""What a notebook and its ranks hold, as plain dictionaries: the rules of the namespace, in short.

A name is sent to a rank when a cell reads it there, and the notebook has assigned it since the rank
got it or bound it. What the notebook has appended to a list since the rank got it is appended there
too; a rank that has bound another one since gets the notebook's.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

NUMBERS = ("a", "b", "c")
LISTS = ("items", "more")
DATA = ("data",)
NAMES = (*NUMBERS, *LISTS, *DATA)

MISSING = "missing"
"""In place of the value of a name that is not bound."""


@dataclass(frozen=True)
class Statement:
    """A statement of a cell: what it does to ``name``, from ``source`` and ``number``.

    Attributes
    ----------
    kind
        ``set`` binds a number or a list, ``add`` binds what another name holds plus a number,
        ``append`` changes a list in place, ``join`` binds a list that is longer, ``measure`` binds
        the size of another name's value.
    name, source, number
        What it is about.
    """

    kind: str
    name: str
    source: str = ""
    number: int = 0

    @property
    def code(self) -> str:
        """The statement in Python."""
        match self.kind:
            case "set" if self.name in LISTS:
                return f"{self.name} = [{self.number}]"
            case "set":
                return f"{self.name} = {self.number}"
            case "add":
                return f"{self.name} = {self.source} + {self.number}"
            case "append":
                return f"{self.name}.append({self.number})"
            case "measure":
                return f"{self.name} = len({self.source})"
            case _:
                return f"{self.name} = {self.name} + [{self.number}]"

    @property
    def reads(self) -> str | None:
        """The name that it reads."""
        if self.kind == "set":
            return None
        return self.source if self.kind in ("add", "measure") else self.name

    @property
    def binds(self) -> str | None:
        """The name that it binds."""
        return None if self.kind == "append" else self.name

    def run(self, names: dict[str, Any]) -> None:
        """Do it."""
        exec(self.code, {"__builtins__": {"len": len}}, names)


def read_first(statements: Sequence[Statement]) -> list[str]:
    """Return the names that a cell reads and has not bound before."""
    bound: set[str] = set()
    found = []
    for each in statements:
        if each.reads and each.reads not in bound and each.reads not in found:
            found.append(each.reads)
        if each.binds:
            bound.add(each.binds)
    return found


@dataclass
class Rank:
    """What a rank holds.

    Attributes
    ----------
    names
        Its names.
    stale
        Names that the notebook has assigned since the rank got or bound them.
    appended
        What the notebook has appended to lists since the rank got them, by name.
    own
        Names that it has bound itself.
    doomed
        Names that the notebook has deleted: the rank lets go of them with its next run.
    unsure
        Names of which several values are possible, since something broke while they were bound.
    """

    names: dict[str, Any] = field(default_factory=dict)
    stale: set[str] = field(default_factory=set)
    appended: dict[str, list[int]] = field(default_factory=dict)
    own: set[str] = field(default_factory=set)
    doomed: set[str] = field(default_factory=set)
    unsure: dict[str, list[Any]] = field(default_factory=dict)

    def allows(self, name: str, value: Any) -> bool:
        """Return whether the rank may hold this."""
        return value in self.possible(name)

    def possible(self, name: str) -> list[Any]:
        """Return what it may hold; what is stale nobody sees, so it may be gone already."""
        values = self.unsure.get(name, [self.names.get(name, MISSING)])
        return [*values, MISSING] if name in self.stale else values


@dataclass
class Model:
    """A notebook and its ranks.

    Attributes
    ----------
    here
        What the notebook holds.
    sent
        Names of which some rank has had what the notebook holds.
    """

    here: dict[str, Any] = field(default_factory=dict)
    sent: set[str] = field(default_factory=set)
    ranks: dict[int, Rank] = field(default_factory=dict)

    # The notebook

    def assign(self, name: str, value: Any) -> None:
        """Bind a name in the notebook."""
        self.here[name] = value
        self.sent.discard(name)
        for rank in self.ranks.values():
            rank.doomed.discard(name)
            self._outdate(rank, name)

    def append(self, name: str, number: int) -> None:
        """Append a number to a list in the notebook."""
        self.here[name].append(number)
        if name not in self.sent:
            return
        for rank in self.ranks.values():
            if name in rank.own:
                self._outdate(rank, name)
            elif name not in rank.stale:
                rank.appended.setdefault(name, []).append(number)

    def delete(self, name: str) -> None:
        """Delete a name in the notebook."""
        del self.here[name]
        self.sent.discard(name)
        for rank in self.ranks.values():
            rank.doomed.add(name)
            rank.stale.discard(name)
            rank.appended.pop(name, None)

    def _outdate(self, rank: Rank, name: str) -> None:
        rank.stale.add(name)
        rank.appended.pop(name, None)

    def take_back(self, names: Iterable[str]) -> dict[str, Any]:
        """Bind what the head has under some names, after a run of every rank; return it."""
        found = {name: copy.deepcopy(self.ranks[0].names[name]) for name in names}
        self.here.update(found)
        self.sent.update(found)
        for rank in self.ranks.values():
            for name in found.keys() & rank.names.keys():
                rank.stale.discard(name)
                rank.appended.pop(name, None)
                rank.own.discard(name)
        return found

    # Runs

    def can(self, statement: Statement, ranks: Iterable[int]) -> bool:
        """Return whether these ranks will find what a statement reads."""
        name = statement.reads
        return name is None or all(self._will_have(self.ranks[rank], name) for rank in ranks)

    def _will_have(self, rank: Rank, name: str) -> bool:
        if name in self.here:
            return True
        return name in rank.names and name not in rank.doomed and name not in rank.unsure

    def run(self, ranks: Iterable[int], statements: Sequence[Statement]) -> None:
        """Run a cell on ranks, to its end."""
        for number in ranks:
            rank = self.ranks[number]
            self.begin(rank, read_first(statements))
            for each in statements:
                each.run(rank.names)
                if each.binds:
                    rank.unsure.pop(each.name, None)
                    rank.stale.discard(each.name)
                    rank.appended.pop(each.name, None)
                    rank.own.add(each.name)

    def push(self, names: Iterable[str]) -> None:
        """Send names to every rank, whatever they have."""
        for rank in self.ranks.values():
            for name in names:
                self._outdate(rank, name)
            self.begin(rank, names)

    def begin(self, rank: Rank, names: Iterable[str]) -> None:
        """Begin a run of a rank: it lets go of what was deleted, and gets what it lacks."""
        for name in rank.doomed:
            for kept in (rank.names, rank.unsure):
                kept.pop(name, None)
            rank.own.discard(name)
        rank.doomed.clear()
        for name in names:
            known = name in rank.names or name in rank.unsure
            if name in self.here and (not known or name in rank.stale):
                rank.names[name] = copy.deepcopy(self.here[name])
                self.sent.add(name)
                rank.unsure.pop(name, None)
                rank.stale.discard(name)
                rank.own.discard(name)
                rank.appended.pop(name, None)
            elif name in rank.appended:
                rank.names[name] = [*rank.names[name], *rank.appended.pop(name)]

    def maybe_run(self, ranks: Iterable[int], statements: Sequence[Statement]) -> list[str]:
        """Run a cell on ranks that may not come to it, or not to its end.

        Returns
        -------
        list of str
            The names that nobody can know of then, until they are assigned again.
        """
        touched = {name for each in statements for name in (each.reads, each.binds) if name}
        for number in ranks:
            rank = self.ranks[number]
            gone = set(rank.doomed)
            before = {name: rank.possible(name) for name in NAMES}
            self.run([number], statements)
            for name in touched | gone:
                given = [copy.deepcopy(self.here[name])] if name in self.here else []
                after = rank.names.get(name, MISSING)
                rank.unsure[name] = [*before[name], *given, after, MISSING]
        return sorted(touched)

    # Processes

    def resize(self, count: int) -> None:
        """Have so many ranks: those that come are empty."""
        self.ranks = {number: self.ranks.get(number, Rank()) for number in range(count)}

    def empty(self, ranks: Iterable[int]) -> None:
        """Start ranks anew."""
        for number in ranks:
            self.ranks[number] = Rank()

    def new_notebook(self) -> None:
        """Have another notebook, which has assigned nothing."""
        self.here, self.sent = {}, set()
        for rank in self.ranks.values():
            rank.appended.clear()
            rank.unsure.update({name: rank.possible(name) for name in rank.stale})
            rank.stale.clear()
            rank.doomed.clear()

    def differences(self, found: Sequence[dict[str, Any]]) -> Iterator[str]:
        """Say where ranks hold something else; nothing is unsure after that.

        Parameters
        ----------
        found
            What each rank holds, after a run of all of them.
        """
        for number, names in enumerate(found):
            rank = self.ranks[number]
            self.begin(rank, ())
            for name in NAMES:
                value = names.get(name, MISSING)
                if not rank.allows(name, value):
                    may = _short(rank.possible(name))
                    yield f"rank {number} has {name} = {_short(value)}, not {may}"
                rank.names.pop(name, None)
                if value is not MISSING:
                    rank.names[name] = value
            rank.unsure.clear()


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) < 200 else f"{text[:200]} … {hash(text)}"
