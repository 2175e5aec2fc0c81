"""Asks the nodes of a cluster for profiles of their ranks; for the user's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.pending import LOOK_LINK_WITHIN
from jupyter_sky.cluster.profiling.profile import Profile, samples
from jupyter_sky.cluster.profiling.records import Fetched, fetch
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport.event_loop import wait
from jupyter_sky.transport.protocol.profiling import ProfileAnswer, RecordKind

RATE = 100
"""How often a second ranks are looked at."""

LONGEST = 600.0
"""Seconds for which ranks are looked at, at most."""

_ANSWER_WITHIN = 10.0
_BEGINS_WITHIN = 2.0  # seconds
_AGAIN = 0.25

_Begun = list[tuple[Connection, ProfileAnswer | None]]


class Profiler:
    """Makes profiles of ranks.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def profile(
        self,
        seconds: float,
        ranks: Sequence[int],
        begun: Callable[[], object] = lambda: None,
    ) -> Profile:
        """Profile ranks for some time, until their run ends, or until Ctrl-C.

        Parameters
        ----------
        seconds
            How long.
        ranks
            The ranks.
        begun
            Called when profiling has begun.

        Raises
        ------
        UsageError
            If they do nothing that can be profiled.
        """
        started = wait(self._begin(seconds, ranks))
        since = time.monotonic()
        is_cut = False
        try:
            self._check(started, ranks)
            begun()
            is_cut = wait(self._until_over(seconds, ranks))
        except KeyboardInterrupt:
            pass  # the samples so far are still useful
        finally:
            looked = min(time.monotonic() - since, seconds)
            answers = wait(self._take(started))
        found = sorted(
            (each for answer in answers if answer for each in answer["ranks"]),
            key=lambda each: each["rank"],
        )
        there = [samples(each) for each in found if each["rank"] in ranks and each["asked"]]
        # Ranks that take no part in the run would halve the shares of those that do.
        has_run = {each["rank"] for each in found if each["run"]}
        idle = [each.rank for each in there if each.is_idle and each.rank not in has_run]
        silent = dict.fromkeys(idle, "nothing is running there") | {
            rank: f"{connection.name} does not answer"
            for (connection, _), answer in zip(started, answers, strict=True)
            if answer is None
            for rank in ranks
            if rank in connection.ranks
        }
        chosen = tuple(each for each in there if each.rank not in idle)
        return Profile(looked, chosen, dict(sorted(silent.items())), is_cut)

    def recorded(self, run: str, kind: RecordKind, ranks: Sequence[int]) -> Fetched:
        """Return the recordings of ranks in a finished run."""
        return wait(fetch(self._controller, run, kind, ranks))

    def _check(self, started: _Begun, ranks: Sequence[int]) -> None:
        """Refuse a profile that would show nothing."""
        name = self._controller.spec.name
        there = [each for _, answer in started if answer for each in answer["ranks"]]
        busy = [each for each in there if each["run"]]
        if not there:
            raise SkyError(f"{name}: no node answers, so nothing can be said of its ranks.")
        if not busy:
            those = (
                "" if len(ranks) == len(self._controller.ranks) else f" on {format_ranks(ranks)}"
            )
            raise UsageError(
                f"{name}: nothing is running{those}: start a cell with `%%sky --background` and "
                "type `%sky profile` in the next one, or `jupyter sky profile` in a terminal "
                "while a cell runs."
            )
        if all(each["is_script"] for each in busy):
            raise UsageError(
                f"{name}: a script is running, in processes of its own: only cells and functions "
                "can be profiled."
            )

    async def _begin(self, seconds: float, ranks: Sequence[int]) -> _Begun:
        connections = [
            each for each in self._controller.connections if not each.ranks.isdisjoint(ranks)
        ]
        loop = asyncio.get_running_loop()
        until = loop.time() + _BEGINS_WITHIN
        while True:
            answers = await asyncio.gather(
                *(
                    _ask(each, "profile", ranks=list(ranks), seconds=seconds, rate=RATE)
                    for each in connections
                )
            )
            there = [each for answer in answers if answer for each in answer["ranks"]]
            if any(each["run"] for each in there) or loop.time() > until:
                return list(zip(connections, answers, strict=True))
            # A cell that was started in the background a moment ago may not have begun.
            await asyncio.sleep(_AGAIN)

    async def _until_over(self, seconds: float, ranks: Sequence[int]) -> bool:
        """Wait until the time is over; return whether the ranks finished their run before."""

        def is_over() -> bool:
            states = self._controller.state.ranks
            return not any(each.run for each in states if each.rank in ranks)

        try:
            async with asyncio.timeout(seconds):
                await self._controller.until(is_over)
        except TimeoutError:
            return False
        except SkyError:
            return True  # the cluster is lost, and the samples may show why
        return True

    async def _take(self, started: _Begun) -> list[ProfileAnswer | None]:
        return await asyncio.gather(
            *(
                _ask(connection, "take_profile", number=answer["number"])
                if answer
                else asyncio.sleep(0, None)
                for connection, answer in started
            )
        )


async def _ask(connection: Connection, op: str, **fields: object) -> ProfileAnswer | None:
    """Return what a node says of its own ranks; ``None`` if it does not answer."""
    try:
        answer = await connection.request(
            op, within=_ANSWER_WITHIN, link_within=LOOK_LINK_WITHIN, **fields
        )
    except SkyError:
        return None
    said = cast(ProfileAnswer, answer)
    own = [each for each in said["ranks"] if each["rank"] in connection.ranks]
    return {"number": said["number"], "ranks": own}
