"""Files of the nodes of a cluster; for the user's thread."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from typing import cast

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.files import bring
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.event_loop import wait, wait_with_cleanup
from jupyter_sky.transport.protocol.agent_requests import FindAnswer, WrittenAnswer

_SAID_WITHIN, _LINK_WITHIN = 8.0, 2.0
"""Seconds in which a node says what was written there; more is not worth the wait."""


class Files:
    """The files of the nodes of a cluster.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def find(self, rank: int, patterns: Sequence[str]) -> FindAnswer:
        """Return the files that match patterns on the node of a rank.

        Raises
        ------
        SkyError
            If the node does not answer.
        """
        return wait(bring.find(self._controller.connection(rank), patterns))

    def stamps(self, ranks: Sequence[int], path: str) -> dict[int, list[tuple[int, int]]]:
        """Return the size and modification time of a file on each rank's node that answers now.

        There is none of a file that does not exist.
        """

        async def ask(rank: int) -> list[tuple[int, int]] | None:
            with contextlib.suppress(SkyError):
                answer = await bring.find(self._controller.connection(rank), [path], _SAID_WITHIN)
                return [(each["size"], each["changed"]) for each in answer["files"]]
            return None

        async def ask_all() -> dict[int, list[tuple[int, int]]]:
            answers = zip(ranks, await asyncio.gather(*map(ask, ranks)), strict=True)
            return {rank: answer for rank, answer in answers if answer is not None}

        return wait(ask_all())

    def bring(
        self,
        rank: int,
        places: Sequence[bring.Download],
        arrived: Callable[[int], object],
        waits: Callable[[str], object] = lambda note: None,
    ) -> None:
        """Download files from the node of a rank.

        Parameters
        ----------
        rank
            The rank.
        places
            The files.
        arrived
            Called in another thread with how many bytes more have come.
        waits
            Called twice a second with why none can come now; empty where they can.

        Raises
        ------
        SkyError
            If one of them is gone, or there is no room here.
        """
        connection = self._controller.connection(rank)

        def tick() -> None:
            waits("" if connection.is_up else self._controller.link_note)

        try:
            wait_with_cleanup(bring.bring(connection, places, arrived), tick=tick)
        except OSError as error:
            raise SkyError(f"{error.filename or 'a file'}: {error.strerror or error}.") from None

    def written(self, ranks: Sequence[int]) -> dict[int, list[str]]:
        """Return the files that the last run wrote where ranks start, on each rank's node."""

        async def ask(rank: int) -> list[str]:
            with contextlib.suppress(SkyError):
                connection = self._controller.connection(rank)
                answer = await connection.request(
                    "written", within=_SAID_WITHIN, link_within=_LINK_WITHIN
                )
                return cast(WrittenAnswer, answer)["names"]
            return []

        async def ask_all() -> dict[int, list[str]]:
            answers = await asyncio.gather(*map(ask, ranks))
            return dict(zip(ranks, answers, strict=True))

        return wait(ask_all())
