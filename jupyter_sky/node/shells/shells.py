"""The shells that users have open on a node, and the requests to them.

The user's side polls the output of a shell, over whatever link there is, so a broken link only
costs time. A shell whose output is no longer polled has lost its user, and ends.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import pwd
import resource
import shutil
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from jupyter_sky.node.packages import overlay
from jupyter_sky.node.shells.leftovers import in_sessions, kill_left
from jupyter_sky.node.shells.terminal import Terminal
from jupyter_sky.paths import command_path
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import (
    Handlers,
    OpenShellRequest,
    ReadShellAnswer,
    ResizeShellRequest,
    ShellRequest,
    TypeRequest,
)
from jupyter_sky.transport.protocol.agent_spec import SHELL_OF, AgentSpec
from jupyter_sky.transport.tasks import in_time

GONE_AFTER = 600.0
"""Seconds in which nobody asks for what a shell prints, after which its user is taken to be gone.

A laptop that was closed for minutes comes back, and a link that was broken as long is found again.
"""

_MOST = 32
_SWEPT_WITHIN = 10.0  # seconds to find what is left running
_LOOK_EVERY = 5.0

# Variables of a Jupyter kernel for programs in cells, which do not apply in a terminal.
_OF_KERNELS = {
    "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    "PAGER": "cat",
    "GIT_PAGER": "cat",
}


class Shells:
    """The shells of a node.

    Parameters
    ----------
    folder
        The agent's folder.
    spec
        Its specification.
    variables
        Returns a rank's own environment variables; ``None`` if the rank is not here.
    like
        A process whose limit of open files applies to shells.
    on_typed
        Called when a user types something.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(
        self,
        folder: Path,
        spec: AgentSpec,
        variables: Callable[[int], Mapping[str, str] | None],
        like: int,
        on_typed: Callable[[], object],
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._variables = variables
        self._like = like
        self._on_typed = on_typed
        self._numbers = itertools.count(1)
        self._open: dict[int, Terminal] = {}
        self._sweeping: asyncio.Task[None] | None = None
        self.handlers: Handlers = {
            "open_shell": self._on_open,
            "read_shell": self._on_read,
            "type_in_shell": self._on_type,
            "resize_shell": self._on_resize,
            "close_shell": self._on_close,
        }

    async def end(self) -> None:
        """End all shells, with everything left running in them and in earlier ones."""
        if self._sweeping is None:
            return  # there was no shell
        self._sweeping.cancel()
        # The id of an ended session may have been reused.
        sessions = {each.session for each in self._open.values() if not each.has_ended}
        others = await asyncio.to_thread(in_sessions, sessions) if sessions else []
        await asyncio.gather(*(each.hang_up() for each in self._open.values()))
        # Linux lets who reads the variables of a hanging process wait, at times for ever.
        sweep = partial(kill_left, str(self._folder), others)
        await in_time(sweep, _SWEPT_WITHIN)
        self._open.clear()

    async def _on_open(self, request: OpenShellRequest) -> Message:
        own = self._variables(request["rank"])
        if own is None:
            return {"error": f"rank {request['rank']} is not on this node"}
        if len(self._open) >= _MOST:
            return {"error": f"{_MOST} shells are open on this node: close one of them first."}
        cwd = Path(self._spec.cwd)
        try:
            terminal = await Terminal.open(
                [_program()],
                self._environment(own, request["term"]),
                cwd if cwd.is_dir() else Path.home(),
                _open_files(self._like),
                (request["rows"], request["columns"]),
            )
        except OSError as error:
            return {"error": f"no shell could be started on this node: {error.strerror or error}."}
        number = next(self._numbers)
        self._open[number] = terminal
        self._on_typed()
        if self._sweeping is None:
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        return {"shell": number}

    async def _on_read(self, request: ShellRequest) -> ReadShellAnswer | Message:
        terminal = self._open.get(request["shell"])
        if terminal is None:
            return {"error": "this shell was ended: nobody has asked for what it prints."}
        data, status = await terminal.read()
        return {"data": data, "status": status}

    def _on_type(self, request: TypeRequest) -> Message:
        if terminal := self._open.get(request["shell"]):
            terminal.type(request["data"])
            self._on_typed()
        return {}

    def _on_resize(self, request: ResizeShellRequest) -> Message:
        if terminal := self._open.get(request["shell"]):
            terminal.resize((request["rows"], request["columns"]))
        return {}

    async def _on_close(self, request: ShellRequest) -> Message:
        if terminal := self._open.pop(request["shell"], None):
            await terminal.hang_up()
        return {}

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            for number, terminal in list(self._open.items()):
                if terminal.unread_for > GONE_AFTER:
                    del self._open[number]
                    await terminal.hang_up()

    def _environment(self, own: Mapping[str, str], term: str) -> dict[str, str]:
        """Return the environment that programs of ranks have."""
        env = {**os.environ, **self._spec.env, **own, "TERM": term}
        for name, value in _OF_KERNELS.items():
            if env.get(name) == value:
                del env[name]
        # `python` and `torchrun` are those of the ranks.
        env["PATH"] = command_path(env)
        path = [self._spec.python_path] if self._spec.python_path else []
        env[SHELL_OF] = str(self._folder)
        env["PYTHONPATH"] = os.pathsep.join([*path, str(overlay.link(self._folder))])
        return env


def _open_files(process: int) -> int:
    """Return how many files a process may have open."""
    if sys.platform == "linux":
        return resource.prlimit(process, resource.RLIMIT_NOFILE)[0]
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _program() -> str:
    """Return the user's own shell."""
    try:
        usual = pwd.getpwuid(os.getuid()).pw_shell
    except KeyError:  # for example in a container, for a user without a name
        usual = ""
    for each in (os.environ.get("SHELL"), usual, "bash"):
        if each and (found := shutil.which(each)) and Path(found).name not in _NO_SHELLS:
            return found
    return "/bin/sh"


_NO_SHELLS = ("nologin", "false")
