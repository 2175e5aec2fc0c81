"""Sends the user's answers to the prompts of a run's ranks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.debugging.prompts import Prompts
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.quietly import request_quietly
from jupyter_sky.errors import SkyError
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.protocol.debugging import AnswerKind
from jupyter_sky.transport.protocol.events import Prompted

_SAY_AGAIN_AFTER = 20.0
"""Seconds after which agents whose ranks get no answer hear again that the user gives some."""


class PromptAnswers:
    """The user's side of the prompts of a run; for the user's thread.

    Parameters
    ----------
    controller
        The controller of the cluster.
    run
        The run.
    prompts
        Its prompts.

    Attributes
    ----------
    prompts
        The same.
    """

    def __init__(self, controller: Controller, run: str, prompts: Prompts) -> None:
        self.prompts = prompts
        self._controller = controller
        self._run = run
        self._held = 0.0

    def answer(self, event: Prompted, kind: AnswerKind, text: str = "") -> None:
        """Answer a prompt; ignored if the prompt is over."""
        if time.monotonic() - self._held > _SAY_AGAIN_AFTER:
            self.hold()
        fields = {"rank": event.rank, "number": event.number, "kind": kind, "text": text}
        event_loop.call(self._answer, event.rank, fields)

    def hold(self) -> None:
        """Until the end of the run, let its ranks wait for each other, and for the user."""
        self._held = time.monotonic()
        event_loop.call(self._request, "hold", None, {})

    def _answer(self, rank: int, fields: dict[str, Any]) -> None:
        with contextlib.suppress(SkyError):
            self._request("answer", [self._controller.connection(rank)], fields)
        self._controller.wake()

    def _request(
        self, op: str, connections: Sequence[Connection] | None, fields: dict[str, Any]
    ) -> None:
        for each in self._controller.connections if connections is None else connections:
            self._controller.spawn(request_quietly(each, op, run=self._run, **fields))
