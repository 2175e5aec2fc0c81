"""Asking a kernel on its control channel, which answers while a cell runs."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient

from jupyter_sky.errors import SkyError

KIND = "sky_request"
"""As in `jupyter_sky.notebook.sidebar.control_channel`, which is the other end."""


class NoAnswer(SkyError):
    """A kernel does not answer: it hangs, or has not loaded jupyter_sky any more."""


BEGIN_WITHIN = 5.0
"""Seconds that a kernel has to begin with something; it takes milliseconds where it is well."""

DONE_WITHIN = 3600.0


async def ask(connection_file: Path, request: Mapping[str, Any]) -> str:
    """Have a kernel do something, and return what it says.

    Raises
    ------
    SkyError
        With its words, when it cannot.
    NoAnswer
        When it does not begin with it.
    """
    client = AsyncKernelClient(context=_context())
    try:
        await asyncio.to_thread(client.load_connection_file, str(connection_file))
    except (OSError, ValueError) as error:
        raise NoAnswer(f"the kernel cannot be reached: {error}") from None
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
    try:
        message = client.session.msg(KIND, dict(request))
        client.control_channel.send(message)
        async with asyncio.timeout(BEGIN_WITHIN) as limit:
            reply = await _reply(client, message["header"]["msg_id"])
            limit.reschedule(asyncio.get_running_loop().time() + DONE_WITHIN)
            if reply.get("status") == "begun":
                reply = await _reply(client, message["header"]["msg_id"])
    except TimeoutError:
        raise NoAnswer("the kernel does not answer") from None
    finally:
        client.stop_channels()
    if reply.get("status") != "ok":
        raise SkyError(str(reply.get("message", "the kernel could not do it, and says no more")))
    return str(reply.get("said", ""))


async def _reply(client: AsyncKernelClient, asked: str) -> dict[str, Any]:
    while True:
        message = await client.control_channel.get_msg()
        if message["parent_header"].get("msg_id") == asked:
            return dict(message["content"])


@cache
def _context() -> zmq.asyncio.Context:
    # One for all, as each has a thread of its own.
    return zmq.asyncio.Context()
