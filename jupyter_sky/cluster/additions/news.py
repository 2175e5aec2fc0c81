"""Tells the notebooks of a cluster that one of them has added something; for the user's thread."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.transport.event_loop import call


class News:
    """What notebooks tell each other of a cluster, by way of its head's agent.

    Parameters
    ----------
    controller
        The controller of the cluster.
    """

    def __init__(self, controller: Controller) -> None:
        self._controller = controller

    def tell(self) -> None:
        """Tell others that something was added, which the registry has by now."""
        call(self._tell)

    @contextlib.contextmanager
    def taken(self) -> Iterator[bool]:
        """Say, once, whether another notebook has added something; again if the block fails."""
        formation = self._controller.formation
        has_news, formation.has_additions = formation.has_additions, False
        try:
            yield has_news
        except BaseException:
            formation.has_additions |= has_news
            raise

    def _tell(self) -> None:
        controller = self._controller
        for head in controller.connections[:1]:
            controller.spawn(request_quietly(head, "added", by=controller.context.client))
