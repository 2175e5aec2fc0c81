"""Answers requests of panel and sidebar on the kernel's control channel, also while a cell runs.

What is wanted: Stop, and other requests of pages, while the main thread is busy with a cell. What
does not work: messages to a widget, because they wait on the shell channel until the cell is over.
The solution: messages of our own type on the control channel, which every version of ipykernel
reads in a thread of its own.

The kernel publishes after each message of that channel that it is idle, and pages and the server
believe it, whatever the main thread does: a page would say so during the whole first cell of a
cluster, since JupyterLab sends a message for each new widget. So it is corrected here.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory.kernel_files import BEGIN_BY, CONTROL_MESSAGE_TYPE
from jupyter_sky.errors import SkyError

_ENDING = ("shutdown_request", "interrupt_request")
"""Messages after which the kernel is idle indeed, or soon."""


class ControlChannel:
    """Handles our messages on the control channel; does nothing where there is no ipykernel.

    Parameters
    ----------
    shell
        The shell of the notebook.
    handle_panel
        Does what a panel asks for; called in the control channel's thread, so it has to be quick.
    run_action
        Does what the sidebar asks for, and returns a sentence about the result; called in a thread
        of its own, so it may take long.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        handle_panel: Callable[[Mapping[str, Any]], None],
        run_action: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self._shell = shell
        self._handle_panel = handle_panel
        self._run_action = run_action
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy = False
        kernel = getattr(shell, "kernel", None)
        self._kernel: Any = kernel if hasattr(kernel, "control_handlers") else None
        self._others: dict[str, Callable[..., Any]] = {}
        if self._kernel is not None:
            handlers = self._kernel.control_handlers
            self._others = {kind: handlers[kind] for kind in handlers if kind not in _ENDING}
            for kind, handler in self._others.items():
                handlers[kind] = partial(self._pass_on, handler)
            handlers[CONTROL_MESSAGE_TYPE] = self._handle
            shell.events.register("pre_execute", self._on_pre_execute)
            shell.events.register("post_execute", self._on_post_execute)

    def remove(self) -> None:
        """Handle no more messages."""
        if self._kernel is not None:
            del self._kernel.control_handlers[CONTROL_MESSAGE_TYPE]
            self._kernel.control_handlers.update(self._others)
            self._shell.events.unregister("pre_execute", self._on_pre_execute)
            self._shell.events.unregister("post_execute", self._on_post_execute)

    def _on_pre_execute(self) -> None:
        self._busy = True

    def _on_post_execute(self) -> None:
        self._busy = False

    async def _handle(self, stream: Any, identity: Any, message: Mapping[str, Any]) -> None:
        reply = partial(self._reply, stream, identity, message)
        if message["content"].get(BEGIN_BY, math.inf) < time.time():
            # This process was suspended: the user has been told that nothing is done, or it was
            # done without this kernel, and other runs may go on by now.
            reply({"status": "late"})
        elif "action" in message["content"]:
            # The control channel also carries Stop and the kernel's end, so it must not wait for
            # the action. A first reply says that it has begun, a second one how it went.
            reply({"status": "begun"})
            task = asyncio.get_running_loop().create_task(self._act(message["content"], reply))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        else:
            self._handle_panel(message["content"])
            reply({"status": "ok"})
        asyncio.get_running_loop().call_soon(self._correct_status)

    async def _pass_on(
        self, handler: Callable[..., Any], stream: Any, identity: Any, message: Mapping[str, Any]
    ) -> None:
        """Let the kernel handle a message of another type."""
        try:
            handled = handler(stream, identity, message)
            if inspect.isawaitable(handled):
                await handled
        finally:
            asyncio.get_running_loop().call_soon(self._correct_status)

    async def _act(
        self, content: Mapping[str, Any], reply: Callable[[Mapping[str, Any]], None]
    ) -> None:
        try:
            said = await asyncio.to_thread(self._run_action, content)
        except (SkyError, Interrupted) as error:  # the latter would end the channel's loop
            reply({"status": "error", "message": str(error)})
        except Exception as error:
            reply({"status": "error", "message": f"{type(error).__name__}: {error}"})
        else:
            reply({"status": "ok", "said": said})

    def _reply(
        self, stream: Any, identity: Any, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> None:
        reply_type = f"{CONTROL_MESSAGE_TYPE}_reply"
        self._kernel.session.send(stream, reply_type, content, parent=message, ident=identity)

    def _correct_status(self) -> None:
        if self._busy:
            self._publish_status("busy")
            if not self._busy:  # the cell has ended in between
                self._publish_status("idle")

    def _publish_status(self, state: str) -> None:
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "status",
            {"execution_state": state},
            parent=self._kernel.get_parent("shell"),
            ident=b"status",
        )
