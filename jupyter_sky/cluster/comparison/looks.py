"""Asks the ranks of a cluster about their variables; for the user's thread."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from jupyter_sky.cluster.comparison.same import Compared, compare
from jupyter_sky.cluster.comparison.table import NameRow, rows
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import LOOK_LINK_WITHIN
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.event_loop import wait
from jupyter_sky.transport.protocol.inspection import (
    RANDOM,
    SMALL,
    LookAnswer,
    LookedRank,
    Question,
)

_ANSWER_WITHIN = 310.0


@dataclass(frozen=True)
class Names:
    """The variables of the ranks.

    Attributes
    ----------
    rows
        A row for each name, or several if ranks differ.
    missing
        Names that were asked for and that no rank has; unknown where none answers.
    has_answer
        Whether any rank answers.
    notes
        Further sentences for the user.
    """

    rows: tuple[NameRow, ...]
    missing: tuple[str, ...]
    has_answer: bool
    notes: tuple[str, ...]


class Looks:
    """Examines the variables on the ranks of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def names(self, names: Sequence[str] = ()) -> Names:
        """Return the values of names, by default of all; works during a run, too."""
        looked = wait(self._ask("names", names))
        answered = [each for each in looked if each["state"] == "answered"]
        found = {seen["name"] for each in answered for seen in each["names"]}
        missing = tuple(name for name in names if answered and name not in found)
        table, notes = rows(answered), self._notes(looked)
        uncompared = [row for row in table if row.differ is None and row.ranks[1:]]
        large = next((row.name for row in uncompared if (row.size or SMALL) >= SMALL), None)
        if large and not self._controller.state.busy_runs:
            notes.append(f"`%sky same {large}` compares the values of what is large")
        return Names(table, missing, bool(answered), tuple(notes))

    def same(self, names: Sequence[str], random: bool = False) -> Compared:
        """Return whether names have equal values on all ranks, and where these first differ.

        Raises
        ------
        SkyError
            If ranks are busy or do not answer, so that nothing can be said.
        """

        def ask(
            what: Question, names: Sequence[str], ranks: Sequence[int] = (), start: int = 0
        ) -> list[LookedRank]:
            looked = wait(self._ask(what, names, random, ranks, start))
            self._check(looked)
            return looked

        return compare(ask, [*names, *([RANDOM] if random else [])])

    def _check(self, looked: Sequence[LookedRank]) -> None:
        name = self._controller.spec.name
        if busy := [each["rank"] for each in looked if each["state"] == "busy"]:
            raise SkyError(
                f"{format_ranks(busy)} of {name} {'is' if len(busy) == 1 else 'are'} busy with a "
                f"run: compare when it is over, or stop it with `%sky interrupt`."
            )
        if silent := [each["rank"] for each in looked if each["state"] == "silent"]:
            raise SkyError(
                f"{format_ranks(silent)} of {name} {_does(silent)} not answer: `%sky where` says "
                "what ranks are doing."
            )
        if failed := next((each for each in looked if each["trouble"]), None):
            raise SkyError(f"rank {failed['rank']} cannot compare {failed['trouble']}.")

    def _notes(self, looked: Sequence[LookedRank]) -> list[str]:
        notes = []
        if silent := [each["rank"] for each in looked if each["state"] != "answered"]:
            notes.append(f"{format_ranks(silent)} {_does(silent)} not answer")
        if self._controller.state.busy_runs:
            notes.append("a run is going on: values were not compared")
        if more := max((each["more"] for each in looked), default=0):
            notes.append(f"{more} more names are not shown: name those that you look for")
        notes += [f"rank {each['rank']}: {each['trouble']}" for each in looked if each["trouble"]]
        return notes

    async def _ask(
        self,
        what: Question,
        names: Sequence[str],
        random: bool = False,
        ranks: Sequence[int] = (),
        start: int = 0,
    ) -> list[LookedRank]:
        """Return the answers of ranks, by default of all, in order."""
        asked = set(ranks or self._controller.ranks)

        async def ask(connection: Connection) -> list[LookedRank]:
            mine = sorted(asked & set(connection.ranks))
            if not mine:
                return []
            try:
                answer = await connection.request(
                    "look",
                    within=_ANSWER_WITHIN,
                    link_within=LOOK_LINK_WITHIN,
                    what=what,
                    names=list(names),
                    random=random,
                    start=start,
                    ranks=mine,
                )
            except SkyError:
                answer = {"looked": []}
            looked = {each["rank"]: each for each in cast(LookAnswer, answer)["looked"]}
            return [looked.get(rank, _silent(rank)) for rank in mine]

        found = await asyncio.gather(*map(ask, self._controller.connections))
        return sorted((each for some in found for each in some), key=lambda each: each["rank"])


def _silent(rank: int) -> LookedRank:
    return {
        "rank": rank,
        "state": "silent",
        "trouble": "",
        "names": [],
        "more": 0,
        "parts": [],
        "numbers": b"",
        "sampled": False,
    }


def _does(ranks: Sequence[int]) -> str:
    return "does" if len(ranks) == 1 else "do"
