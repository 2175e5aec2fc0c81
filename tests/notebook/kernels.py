"""Notebooks without a browser: a real kernel, and cells whose messages are read as they come.

There are shells in the process of a test, too, of which nothing stays when it has ended.
"""

from __future__ import annotations

import ast
import atexit
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from jupyter_client import KernelManager
from traitlets.config import Config

from jupyter_sky.cluster.snapshot import RankView
from jupyter_sky.notebook.panel.strip import MIME

PATIENCE = 180.0
"""Seconds that may pass without any message; only a test that fails waits so long."""

# What a strip shows where its saved record does not say it.
_UNSAID = {
    **dict.fromkeys(RankView.__annotations__),
    "line": "",
    "restarted": False,
    "began_empty": False,
}


@dataclass
class Cell:
    """A cell that was sent to a kernel, and what has come back of it so far.

    Attributes
    ----------
    strips
        The states of the strip above its output, by MIME type; the last one is what it shows.
    order
        The types of all messages as they came; a new strip is ``"strip"``.
    """

    id: str
    stdout: str = ""
    stderr: str = ""
    strips: list[dict[str, Any]] = field(default_factory=list)
    shown: list[str] = field(default_factory=list)
    data: list[dict[str, Any]] = field(default_factory=list)
    error: dict[str, Any] | None = None
    idle: bool = False
    said_busy: int = 0
    order: list[str] = field(default_factory=list)
    _places: dict[str, int] = field(default_factory=dict)
    _strips: set[str] = field(default_factory=set)

    def take(self, kind: str, content: dict[str, Any]) -> None:
        """Take up a message of the kernel, as a notebook does."""
        is_strip = kind == "display_data" and MIME in content["data"]
        self.order.append("strip" if is_strip else kind)
        match kind:
            case "stream" if content["name"] == "stdout":
                self.stdout += content["text"]
            case "stream":
                self.stderr += content["text"]
            case "display_data" | "update_display_data" if MIME in content["data"]:
                # What another cell has shown is updated from here too.
                is_new = kind == "display_data"
                if is_new or self.has(content["transient"]["display_id"]):
                    self._strips.add(content["transient"]["display_id"])
                    self.strips.append(content["data"])
            case "clear_output":
                self.stdout = self.stderr = ""
                self.shown, self.data = [], []
            case "display_data" | "execute_result":
                if place := content.get("transient", {}).get("display_id"):
                    self._places[place] = len(self.shown)
                self.shown.append(content["data"]["text/plain"])
                self.data.append(content["data"])
            case "update_display_data":
                place = content["transient"]["display_id"]
                if place in self._places:
                    self.shown[self._places[place]] = content["data"]["text/plain"]
                    self.data[self._places[place]] = content["data"]
            case "error":
                self.error = content
            case "status" if content["execution_state"] == "idle":
                self.idle = True
            case "status" if content["execution_state"] == "busy":
                self.said_busy += 1

    def has(self, place: str | None) -> bool:
        """Return whether it shows a display of this id."""
        return place in self._strips or place in self._places

    @property
    def snapshot(self) -> Any:
        """What the strip above the cell's output shows of its run."""
        saved = self.strips[-1][MIME]["snapshot"]
        return {**saved, "ranks": [{**_UNSAID, **rank} for rank in saved["ranks"]]}

    @property
    def sentence(self) -> str:
        """The one line that the cell shows as its error."""
        assert self.error is not None, f"no error, but {self}"
        [line] = self.error["traceback"]
        assert "\n" not in line
        return without_colours(line)

    @property
    def traceback(self) -> str:
        """All lines that the cell shows as its error."""
        assert self.error is not None, f"no error, but {self}"
        return without_colours("\n".join(self.error["traceback"]))


class LiveNotebook:
    """A notebook with a kernel of its own.

    Parameters
    ----------
    path
        Where the notebook would be; the kernel runs in its folder.
    encryption
        Of the way to the kernel. From version 7.4 on ipykernel warns where there is none; before,
        it cannot have any.
    runtime
        Where a Jupyter server would look for the kernel, if there is one.
    env
        Environment variables of the kernel beyond those of the tests.
    """

    def __init__(self, path: Path, encryption: str = "auto", runtime: str = "", **env: str) -> None:
        self.path = path
        config = Config({"KernelManager": {"transport_encryption": encryption}})
        # Jupyter Server tells its kernels in this way which notebook they belong to.
        env = {**os.environ, "JPY_SESSION_NAME": str(path), **env}

        self._manager = KernelManager(kernel_name="python3", config=config)
        if runtime:
            self._manager.connection_file = f"{runtime}/kernel-{path.stem}.json"
        self._manager.start_kernel(cwd=str(path.parent), env=env)
        self._connect()

    def run(self, code: str, keyboard: bool = False) -> Cell:
        """Run a cell to its end, whether it fails or not."""
        return self.finish(self.start(code, keyboard))

    def start(self, code: str, keyboard: bool = True) -> Cell:
        """Send a cell to the kernel; without a keyboard, as papermill does."""
        return Cell(self._client.execute(code, allow_stdin=keyboard))

    def until(self, cell: Cell, condition: Callable[[Cell], object]) -> None:
        """Read what comes back until a condition holds."""
        while not condition(cell):
            assert not cell.idle, f"the cell ended before: {cell}"
            self._read(cell)

    def watch(self, cell: Cell, condition: Callable[[Cell], object]) -> None:
        """Read what comes back, also when the cell has ended, until a condition holds."""
        while not condition(cell):
            self._read(cell)

    def finish(self, cell: Cell, *others: Cell) -> Cell:
        """Read what comes back until the cell has ended, also for cells that have ended before."""
        while not cell.idle:
            self._read(cell, *others)
        self._client.get_shell_msg(timeout=PATIENCE)
        return cell

    def answer(self, text: str) -> str:
        """Answer what the running cell asks the user, and return the question."""
        question = self.question()
        self.type(text)
        return question

    def type(self, text: str) -> None:
        """Answer the question that is open."""
        self._client.input(text)

    def question(self) -> str:
        """Wait for a question of the running cell, and leave it open."""
        message = self._client.get_stdin_msg(timeout=PATIENCE)
        return str(message["content"]["prompt"])

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the kernel, as a literal can say it."""
        return ast.literal_eval(self.succeed(f"print(repr(({expression})))").stdout)

    def succeed(self, code: str) -> Cell:
        """Run a cell that has to work."""
        cell = self.run(code)
        # What it printed says why, where the error is about a program.
        assert cell.error is None, f"{cell.traceback}\n{cell.stdout}\n{cell.stderr}"
        return cell

    @property
    def pid(self) -> int:
        """The process id of the kernel."""
        return int(self._manager.provisioner.pid)

    def interrupt(self) -> None:
        """Do what the notebook's Stop does."""
        self._manager.interrupt_kernel()

    def ask(self, request: dict[str, Any]) -> str:
        """Ask what a page asks, beside the cell that runs; return how that went."""
        return str(self.ask_kernel("sky_request", request)["status"])

    def ask_kernel(self, kind: str, request: dict[str, Any]) -> dict[str, Any]:
        """Send a message of any type on the control channel; return the content of the reply."""
        self._client.control_channel.send(self._client.session.msg(kind, request))
        return dict(self._client.get_control_msg(timeout=PATIENCE)["content"])

    def ask_action(self, request: dict[str, Any]) -> Any:
        """Ask what a page asks over the server, and return the result."""
        return json.loads(self.say_action(request))

    def say_action(self, request: dict[str, Any]) -> str:
        """Ask the same, and return the words of the result."""
        reply = self._reply_to(request)
        assert reply["status"] == "ok", reply
        return str(reply["said"])

    def fail_action(self, request: dict[str, Any]) -> str:
        """Ask for what does not work, and return the sentence that says why."""
        reply = self._reply_to(request)
        assert reply["status"] == "error", reply
        return str(reply["message"])

    def _reply_to(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self.ask(request) == "begun"
        return dict(self._client.get_control_msg(timeout=PATIENCE)["content"])

    def restart(self, now: bool = True) -> None:
        """Restart the kernel: kill it, or ask it to end."""
        self._client.stop_channels()
        self._manager.restart_kernel(now=now)
        self._connect()

    def close(self) -> None:
        """End the kernel, and the cluster of the notebook before it."""
        try:
            if self._manager.is_alive():
                self.run("%sky down")
        finally:
            self._client.stop_channels()
            self._manager.shutdown_kernel(now=True)

    def _connect(self) -> None:
        self._client = self._manager.blocking_client()
        self._client.start_channels()
        self._client.wait_for_ready(timeout=PATIENCE)

    def _read(self, *cells: Cell) -> None:
        message = self._client.get_iopub_msg(timeout=PATIENCE)
        for cell in cells:
            kind, content = message["msg_type"], message["content"]
            # A display is replaced wherever it is, whoever says so.
            is_there = kind == "update_display_data" and cell.has(
                content["transient"]["display_id"]
            )
            if is_there or message["parent_header"].get("msg_id") == cell.id:
                cell.take(kind, content)


def without_colours(text: str) -> str:
    """Return a traceback as plain text."""
    return re.sub(r"\x1b\[[0-9;]*m", "", text)


def new_shell(make: Callable[..., InteractiveShell] = InteractiveShell) -> InteractiveShell:
    """Return a shell without a history on the disk; `let_go` of it in the end."""
    return make(config=Config({"HistoryManager": {"enabled": False}}))


def let_go(shell: InteractiveShell) -> None:
    """Let a shell go.

    Or the shells of all tests stay until the process ends, which then takes each of them apart and
    looks for garbage each time.
    """
    atexit.unregister(shell.atexit_operations)
