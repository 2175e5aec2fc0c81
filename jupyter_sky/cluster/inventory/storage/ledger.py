"""What clusters have cost, kept after their end: which resources, how long, and at which price."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, replace
from datetime import date, datetime, timedelta
from typing import NamedTuple


@dataclass(frozen=True)
class Spent:
    """A time in which a cluster had the same nodes at the same price.

    Attributes
    ----------
    name, place
        The cluster, and where it was rented.
    since, until
        Seconds since the epoch.
    price
        Dollars an hour.
    nodes, gpus
        How many it had whose hours count, and how many GPUs these had together.
    """

    name: str
    place: str
    since: float
    until: float
    price: float
    nodes: int = 0
    gpus: int = 0

    @property
    def hours(self) -> float:
        """How long it was."""
        return max(0.0, self.until - self.since) / 3600

    @property
    def dollars(self) -> float:
        """What it has cost."""
        return self.hours * self.price

    @property
    def gpu_hours(self) -> float:
        """The hours of all GPUs."""
        return self.hours * self.gpus

    @property
    def node_hours(self) -> float:
        """The hours of all nodes, where these have no GPUs."""
        return 0.0 if self.gpus else self.hours * self.nodes

    @property
    def is_something(self) -> bool:
        """Whether something was spent."""
        return bool(self.hours and (self.price or self.nodes))


AT_MOST = ", at most"
"""What is added to a place where something ended unseen: nobody knows any more how early."""


class Total(NamedTuple):
    """What was spent in several times; fields as of `Spent`."""

    hours: float = 0.0
    dollars: float = 0.0
    gpu_hours: float = 0.0
    node_hours: float = 0.0

    def plus(self, more: Spent | Total) -> Total:
        """Return the total with more."""
        return Total(
            self.hours + more.hours,
            self.dollars + more.dollars,
            self.gpu_hours + more.gpu_hours,
            self.node_hours + more.node_hours,
        )


def write(database: sqlite3.Connection, spent: Spent) -> None:
    """Write down a time that is over."""
    if spent.is_something:
        database.execute("INSERT INTO spent_at_rate VALUES (?, ?, ?, ?, ?, ?, ?)", astuple(spent))


def read(database: sqlite3.Connection) -> list[Spent]:
    """Return all times that are over, oldest first."""
    found = database.execute(
        "SELECT * FROM spent_at_rate UNION ALL SELECT *, 0, 0 FROM spent ORDER BY since"
    )
    return [Spent(*each) for each in found.fetchall()]


def by_day(
    all_spent: Sequence[Spent], days: int, now: float | None = None
) -> dict[tuple[date, str, str], Total]:
    """Return what was spent by day, cluster and place, newest day first.

    Parameters
    ----------
    days
        How many days, of which today is the last; days are those of this computer's time zone.
    now
        The time; by default that of the clock.
    """
    today = datetime.fromtimestamp(time.time() if now is None else now).date()
    first = date.fromordinal(max(1, today.toordinal() - days + 1))
    found: dict[tuple[date, str, str], Total] = {}
    for spent in all_spent:
        for day, part in _days(spent):
            if day >= first:
                key = day, spent.name, spent.place
                found[key] = found.get(key, Total()).plus(part)
    return dict(sorted(found.items(), key=lambda each: (-each[0][0].toordinal(), *each[0][1:])))


def _days(spent: Spent) -> Iterator[tuple[date, Spent]]:
    """Yield the parts of a time that lie in one day each."""
    since = spent.since
    while since < spent.until:
        day = datetime.fromtimestamp(since).date()
        midnight = datetime.combine(day + timedelta(days=1), datetime.min.time()).timestamp()
        until = min(midnight, spent.until)
        yield day, replace(spent, since=since, until=until)
        since = until
