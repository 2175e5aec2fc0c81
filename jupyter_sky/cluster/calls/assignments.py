"""Which rank has which call of a run, by the number under which the rank was sent it."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from jupyter_sky.cluster.calls.batch import BatchedCall

_MOST_LOST = 3  # ranks to which the arguments of a call were on their way


@dataclass(eq=False)
class Assignment:
    """A call that a rank has.

    Attributes
    ----------
    number
        Its number. No other has the same, in whatever run: a call may go on in another.
    call, rank
        The call, and the rank.
    is_settled
        Whether it was answered already, or is not wanted: what the rank makes of it does not count.
    is_there
        Whether its arguments are on the rank's node, and the rank is sent the call.
    has_begun
        Whether the rank carries it out; otherwise it waits there for the rank's earlier calls.
    is_overdue
        Whether it should have ended by now, since its time is over or it was cancelled.
    timers
        What waits for the end of its time.
    """

    number: int
    call: BatchedCall
    rank: int
    is_settled: bool = False
    is_there: bool = False
    has_begun: bool = False
    is_overdue: bool = False
    timers: list[asyncio.TimerHandle] = field(default_factory=list)

    def end(self) -> None:
        """Wait for nothing any more, and hold on to nothing: its arguments may be large."""
        for timer in self.timers:
            timer.cancel()
        self.timers.clear()

    def is_lost_too_often(self) -> bool:
        """Count that its rank was lost; return whether that may be due to its arguments."""
        if self.is_there:
            return False
        lost = self.call.batch.lost
        lost[self.call.position] += 1
        return lost[self.call.position] > _MOST_LOST


_numbers = itertools.count(1)


class Assignments:
    """The calls that ranks have, in the order in which they got them."""

    def __init__(self) -> None:
        self._all: dict[int, Assignment] = {}

    def __len__(self) -> int:
        return len(self._all)

    def __iter__(self) -> Iterator[Assignment]:
        return iter(list(self._all.values()))

    def add(self, call: BatchedCall, rank: int) -> Assignment:
        """Note that a rank gets a call."""
        call.batch.began = call.batch.began or time.monotonic()
        number = next(_numbers)
        new = self._all[number] = Assignment(number, call, rank)
        return new

    def find(self, number: int | None, rank: int) -> Assignment | None:
        """Return what a rank was given under a number; ``None`` if it has no such call."""
        found = self._all.get(number) if number is not None else None
        return found if found and found.rank == rank else None

    def oldest(self, rank: int, count: int = 1) -> list[Assignment]:
        """Return the calls that a rank has had for the longest time."""
        all_of_rank = (each for each in self._all.values() if each.rank == rank)
        return list(itertools.islice(all_of_rank, count))

    def printing(self, number: int | None, rank: int) -> list[Assignment]:
        """Return the call that has printed something; outside of calls, the rank's oldest one."""
        found = self.find(number, rank)
        return [found] if found else self.oldest(rank)

    def __contains__(self, each: Assignment) -> bool:
        return each.number in self._all

    def remove(self, each: Assignment) -> None:
        """Note that a rank does not have a call any more."""
        self._all.pop(each.number, None)
        each.end()

    def remove_rank(self, rank: int) -> list[Assignment]:
        """Take all calls from a rank; return those that are not settled."""
        removed = [each for each in self if each.rank == rank]
        for each in removed:
            self.remove(each)
        return [each for each in removed if not each.is_settled]

    def loads(self, ranks: Collection[int]) -> dict[int, int]:
        """Return how many calls each of some ranks has."""
        loads = dict.fromkeys(ranks, 0)
        for each in self._all.values():
            if each.rank in loads:
                loads[each.rank] += 1
        return loads

    def clear(self) -> list[Assignment]:
        """Take all calls from all ranks; return those that are not settled."""
        left = [each for each in self if not each.is_settled]
        for each in self:
            self.remove(each)
        return left
