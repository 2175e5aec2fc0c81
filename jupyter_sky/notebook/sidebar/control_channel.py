"""What pages ask of the kernel, also while a cell runs: requests on the control channel.

Messages to a widget wait until the cell is over. A message of the control channel does not, in any
version of ipykernel; it is answered in a thread of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.errors import SkyError

KIND = "sky_request"


class Requests:
    """Takes the requests of pages, where the shell is one of ipykernel.

    Parameters
    ----------
    shell
        The shell of the notebook.
    take
        Does soon what a panel asks for; called in the thread of the control channel.
    act
        Does what the sidebar asks for, and returns a sentence about it; called in a thread of its
        own, as it may take its time.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        take: Callable[[Mapping[str, Any]], None],
        act: Callable[[Mapping[str, Any]], str],
    ) -> None:
        self._shell = shell
        self._take = take
        self._act = act
        self._acting: set[asyncio.Task[None]] = set()
        self._busy = False
        kernel = getattr(shell, "kernel", None)
        self._kernel: Any = kernel if hasattr(kernel, "control_handlers") else None
        if self._kernel is not None:
            self._kernel.control_handlers[KIND] = self._answer
            shell.events.register("pre_execute", self._begin)
            shell.events.register("post_execute", self._end)

    def remove(self) -> None:
        """Take no more."""
        if self._kernel is not None:
            del self._kernel.control_handlers[KIND]
            self._shell.events.unregister("pre_execute", self._begin)
            self._shell.events.unregister("post_execute", self._end)

    def _begin(self) -> None:
        self._busy = True

    def _end(self) -> None:
        self._busy = False

    async def _answer(self, stream: Any, identity: Any, message: Mapping[str, Any]) -> None:
        reply = partial(self._reply, stream, identity, message)
        if "action" in message["content"]:
            # The control channel has Stop and the kernel's end to carry, and must not wait. Who
            # asks hears at once that somebody is there, and in a second reply how it went.
            reply({"status": "begun"})
            task = asyncio.get_running_loop().create_task(self._answer_later(message, reply))
            self._acting.add(task)
            task.add_done_callback(self._acting.discard)
        else:
            self._take(message["content"])
            reply({"status": "ok"})
        # The kernel says after every control message that it is idle; pages and the server believe
        # it, whatever the main thread does.
        asyncio.get_running_loop().call_soon(self._say_what_is_true)

    async def _answer_later(
        self, message: Mapping[str, Any], reply: Callable[[Mapping[str, Any]], None]
    ) -> None:
        try:
            said = await asyncio.to_thread(self._act, message["content"])
        except SkyError as error:
            reply({"status": "error", "message": str(error)})
        except Exception as error:
            reply({"status": "error", "message": f"{type(error).__name__}: {error}"})
        else:
            reply({"status": "ok", "said": said})

    def _reply(
        self, stream: Any, identity: Any, message: Mapping[str, Any], content: Mapping[str, Any]
    ) -> None:
        session = self._kernel.session
        session.send(stream, f"{KIND}_reply", content, parent=message, ident=identity)

    def _say_what_is_true(self) -> None:
        if self._busy:
            self._say("busy")
            if not self._busy:  # it was over in between
                self._say("idle")

    def _say(self, state: str) -> None:
        self._kernel.session.send(
            self._kernel.iopub_socket,
            "status",
            {"execution_state": state},
            parent=self._kernel.get_parent("shell"),
            ident=b"status",
        )
