"""A notebook without a page: a real kernel, driven over its sockets as a frontend drives it."""

from __future__ import annotations

import ast
import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from jupyter_client.manager import KernelManager

from tests.paths import ROOT

OnText = Callable[[str], object]


class CellFailed(Exception):
    """A cell raised an error although none was expected."""


@dataclass
class Cell:
    """What came of a cell.

    Attributes
    ----------
    arrivals
        For each message with text, when it arrived and the text.
    updates
        For each message to a widget that came meanwhile, when it arrived and what was in it.
    error
        Name and text of the error that it raised.
    value
        The last expression, as text.
    started, ended
        When the frontend sent it, and when it learned that it was over.
    """

    arrivals: list[tuple[float, str]] = field(default_factory=list)
    updates: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    error: tuple[str, str] | None = None
    value: str = ""
    started: float = field(default_factory=time.monotonic)
    ended: float = 0.0

    @property
    def text(self) -> str:
        """Everything that it printed."""
        return "".join(text for _, text in self.arrivals)


class Notebook:
    """A kernel of its own; a context manager around its life.

    Parameters
    ----------
    env
        Variables to set for it, beside those of this process.
    """

    def __init__(self, env: dict[str, str] | None = None) -> None:
        path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
        self._env = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": path, **(env or {})}
        # Without "auto", ipykernel warns in every run that the way to it is not encrypted.
        self._manager = KernelManager(kernel_name="python3", transport_encryption="auto")

    def __enter__(self) -> Notebook:
        self._manager.start_kernel(cwd=str(ROOT), env=self._env)
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=60)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._client.stop_channels()
        self._manager.shutdown_kernel(now=error is not None)

    def run(
        self,
        code: str,
        *,
        on_text: OnText | None = None,
        fails: bool = False,
        within: float = 300.0,
    ) -> Cell:
        """Run a cell and return what came of it.

        Parameters
        ----------
        code
            The cell.
        on_text
            Called with all the text so far, whenever some arrives.
        fails
            Whether the cell is expected to raise an error.
        within
            Seconds to wait for its end.
        """
        cell = Cell()
        request = self._client.execute(code)
        until = time.monotonic() + within
        while True:
            message = self._client.get_iopub_msg(timeout=max(0.0, until - time.monotonic()))
            arrived = time.monotonic()
            content: dict[str, Any] = message["content"]
            if message["msg_type"] == "comm_msg":
                cell.updates.append((arrived, content))
            if message["parent_header"].get("msg_id") != request:
                continue
            match message["msg_type"]:
                case "stream":
                    cell.arrivals.append((arrived, content["text"]))
                    if on_text:
                        on_text(cell.text)
                case "execute_result":
                    cell.value = content["data"]["text/plain"]
                case "error":
                    cell.error = content["ename"], content["evalue"]
                case "status" if content["execution_state"] == "idle":
                    cell.ended = arrived
                    break
        self._client.get_shell_msg(timeout=within)
        if cell.error and not fails:
            raise CellFailed(": ".join(cell.error))
        if fails and not cell.error:
            raise CellFailed("the cell was expected to fail, and did not")
        return cell

    def value(self, expression: str) -> Any:
        """Return the value of an expression of plain Python data."""
        return ast.literal_eval(self.run(expression).value)

    def interrupt(self) -> None:
        """Interrupt the cell that runs, as the Stop button does."""
        self._manager.interrupt_kernel()


class SkyNotebook(Notebook):
    """A notebook with the extension loaded, and its cluster ended with it."""

    def __enter__(self) -> SkyNotebook:
        super().__enter__()
        try:
            self.run("%load_ext jupyter_sky")
        except BaseException as error:
            super().__exit__(type(error), error, None)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if error is None:
            self.run("%sky down")
        super().__exit__(kind, error, traceback)
