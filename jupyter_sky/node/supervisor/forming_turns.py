"""Which notebook forms the process group: one at a time, or ranks would wait in unlike groups.

After a loss, all notebooks whose runs wait find the group broken at the same moment. The requests
of two of them would reach the nodes in different orders. The first node decides.
"""

from __future__ import annotations

from collections.abc import Container

from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import Handlers
from jupyter_sky.transport.protocol.topology import (
    BeginFormingRequest,
    EndFormingRequest,
    FormingTurn,
)


class FormingTurns:
    """The turns of a cluster's notebooks to form the process group.

    Parameters
    ----------
    clients
        The clients that are connected: one that is not has left its turn.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, clients: Container[str]) -> None:
        self._clients = clients
        self._holder = ""
        self._generation = 0
        self.handlers: Handlers = {
            "begin_forming": self._on_begin,
            "end_forming": self._on_end,
        }

    def _on_begin(self, request: BeginFormingRequest) -> Message:
        client = request["client"]
        is_left = self._holder not in ("", client)
        is_given = not (is_left and self._holder in self._clients)
        if is_given:
            self._holder = client
            # What failed is not tried again by its number: some ranks may still be in it.
            self._generation = max(self._generation + 1, request["generation"])
        turn: FormingTurn = {
            "is_given": is_given,
            "is_left": is_given and is_left,
            "generation": self._generation,
        }
        return {**turn}

    def _on_end(self, request: EndFormingRequest) -> Message:
        if self._holder == request["client"]:
            self._holder = ""
        return {}
