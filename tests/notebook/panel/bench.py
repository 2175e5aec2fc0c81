"""A workbench for panels: what stands in for the kernel, for time, and for the notebook's page."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from comm.base_comm import BaseComm

from jupyter_sky.cluster.snapshot import Snapshot
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.panel.widget import Panel
from tests.paths import ROOT

LEGIBLE = Path(__file__).with_name("legible.js").read_text()
"""Says whether text can be read against what is behind it."""

STATIC = ROOT / "jupyter_sky" / "notebook" / "static"
FILES = {
    "/": Path(__file__).with_name("page.html"),
    "/panel.js": STATIC / "panel.js",
    "/panel.css": STATIC / "panel.css",
}
ORIGIN = "http://panel.test"


class Wire(BaseComm):
    """What leads to the page: it keeps what is sent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.sent: list[dict[str, Any]] = []
        super().__init__(*args, **kwargs)

    def publish_msg(self, msg_type: str, data: Any = None, **rest: Any) -> None:
        # As on its way to a page, which also shows that it can be written as JSON.
        self.sent.append(json.loads(json.dumps(data or {})))

    @property
    def states(self) -> list[dict[str, Any]]:
        """The parts in each message."""
        return [message["state"] for message in self.sent if "state" in message]


class Bench:
    """A panel, the source that it asks, and time that passes when the test says so."""

    def __init__(self, shown: Snapshot) -> None:
        self.shown = shown
        self.asked: list[int | None] = []
        self.stops = 0
        self.unreachable: int | None = None
        self.answers: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {}
        self.now = 0.0
        self.due: list[tuple[float, Callable[[], None]]] = []
        self.panel = Panel(self, clock=lambda: self.now, later=self._later)

    def snapshot(self, rank: int | None) -> Snapshot:
        self.asked.append(rank)
        if rank is not None and rank == self.unreachable:
            raise SkyError(f"rank {rank} does not answer.")
        return self.shown

    def stop(self) -> None:
        self.stops += 1

    def answer(self, question: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer as `answers` says, by what is asked about."""
        return self.answers[question["about"]](question)

    def listen(self, listener: Callable[[], None]) -> None:
        """Ignore the panel's wish: tests say themselves when it has to update."""

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self.due.append((self.now + seconds, action))

    def wait(self, seconds: float = 1.0) -> None:
        """Let time pass."""
        until = self.now + seconds
        while ripe := [each for each in self.due if each[0] <= until]:
            self.due.remove(ripe[0])
            self.now, action = ripe[0]
            action()
        self.now = until

    def say(self, content: dict[str, Any]) -> None:
        """Send a message as the page does."""
        message = {"content": {"data": {"method": "custom", "content": content}}, "buffers": []}
        self.panel.comm.handle_msg(message)

    @property
    def states(self) -> list[dict[str, Any]]:
        """The parts that were sent, message by message; the first one creates the panel."""
        return self.panel.comm.states


STILL = {"reduced_motion": "reduce"}
"""For pages: without a GPU, a mark that turns takes a quarter of a processor from other tests."""


class Page:
    """The page, with one panel on it."""

    def __init__(self, chromium: Any, bench: Bench, width: int, scheme: str) -> None:
        self.bench = bench
        self.trouble: list[str] = []
        self.browser = chromium.new_page(
            viewport={"width": width + 40, "height": 1000}, color_scheme=scheme, **STILL
        )
        # Of a loaded machine; only a test that fails waits so long.
        self.browser.set_default_timeout(100_000)
        self.browser.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.browser.on("console", lambda message: self.trouble.append(message.text))
        self.browser.route(re.compile(".*"), self._answer)
        self.browser.goto(f"{ORIGIN}/")
        self._passed = 0
        self.deliver()
        self.browser.evaluate("() => void window.show()")

    def deliver(self) -> None:
        """Bring the page what the panel sent since."""
        for state in self.bench.states[self._passed :]:
            self.browser.evaluate("state => window.receive(state)", state)
        self._passed = len(self.bench.states)

    @staticmethod
    def _answer(route: Any) -> None:
        file = FILES.get(route.request.url.removeprefix(ORIGIN))
        if file is None:
            route.fulfill(status=204)
        else:
            route.fulfill(path=file)
