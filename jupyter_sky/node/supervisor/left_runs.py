"""Runs that wait for a notebook that has gone: they would keep others waiting for ever.

A node that nobody uses ends itself after a while, with such a run. Another notebook keeps it up,
and asks here what it waits for.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from typing import Any

from jupyter_sky.node.supervisor.supervisor import Supervisor
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.topology import LeftAnswer, LeftRequest


class LeftRuns:
    """Says which runs only wait for a notebook that is not connected.

    Parameters
    ----------
    clients
        The clients that are connected.
    supervisor
        The ranks.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, clients: Container[str], supervisor: Supervisor) -> None:
        self._clients = clients
        self._ranks = supervisor.ranks
        self.handlers: dict[str, Callable[[Any], Message]] = {"left": self._on_left}

    def _on_left(self, request: LeftRequest) -> Message:
        waiting = [
            each.latest.waiting for each in self._ranks.values() if each.run == request["run"]
        ]
        # Where its ranks have finished, only those of other nodes keep anybody waiting.
        is_left = all(each.is_for_notebook and each.client not in self._clients for each in waiting)
        answer: LeftAnswer = {"is_left": is_left}
        return {**answer}
