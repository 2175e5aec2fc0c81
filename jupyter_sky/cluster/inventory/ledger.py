"""What clusters have cost, kept when they are gone: how long they were up, and at which price."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta

SCHEMA = """
CREATE TABLE IF NOT EXISTS spent (
    name TEXT NOT NULL,
    place TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    price REAL NOT NULL
)
"""


@dataclass(frozen=True)
class Spent:
    """A time in which a cluster had the same price.

    Attributes
    ----------
    name, place
        The cluster, and where it was rented.
    since, until
        Seconds since the epoch.
    price
        Dollars an hour.
    """

    name: str
    place: str
    since: float
    until: float
    price: float

    @property
    def hours(self) -> float:
        """How long it was."""
        return max(0.0, self.until - self.since) / 3600

    @property
    def dollars(self) -> float:
        """What it has cost."""
        return self.hours * self.price


def write(database: sqlite3.Connection, spent: Spent) -> None:
    """Write down a time that is over."""
    if spent.hours and spent.price:
        values = (spent.name, spent.place, spent.since, spent.until, spent.price)
        database.execute("INSERT INTO spent VALUES (?, ?, ?, ?, ?)", values)


def read(database: sqlite3.Connection) -> list[Spent]:
    """Return all times that are over, oldest first."""
    found = database.execute("SELECT name, place, since, until, price FROM spent ORDER BY since")
    return [Spent(*each) for each in found.fetchall()]


def by_day(
    all_spent: Sequence[Spent], days: int, now: float | None = None
) -> dict[tuple[date, str, str], tuple[float, float]]:
    """Return hours and dollars by day, cluster and place, newest day first.

    Parameters
    ----------
    days
        How many days, of which today is the last; days are those of this computer's time zone.
    now
        The time; by default that of the clock.
    """
    first = datetime.fromtimestamp(time.time() if now is None else now).date()
    first -= timedelta(days=days - 1)
    found: dict[tuple[date, str, str], tuple[float, float]] = {}
    for spent in all_spent:
        for day, part in _days(spent):
            if day >= first:
                key = day, spent.name, spent.place
                hours, dollars = found.get(key, (0.0, 0.0))
                found[key] = hours + part.hours, dollars + part.dollars
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
