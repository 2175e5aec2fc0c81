"""Sends a request to a kernel on its control channel, which answers while a cell runs.

The kernel's end is `jupyter_sky.notebook.sidebar.control_channel`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypedDict, cast

import zmq.asyncio
from jupyter_client.asynchronous import AsyncKernelClient

from jupyter_sky.cluster.inventory.kernel_files import (
    BEGIN_BY,
    CONTROL_MESSAGE_TYPE,
    KernelFile,
)
from jupyter_sky.errors import SkyError

BEGIN_WITHIN = 5.0
"""Seconds for a kernel to reply that it has begun; a healthy one takes milliseconds."""

_ON_ITS_WAY = 1.0  # seconds for a reply, of those for the kernel to begin
_LOOK_EVERY = 1.0  # seconds between two looks whether the kernel is there that has begun


class KernelReply(TypedDict, total=False):
    """The content of a kernel's reply: first ``begun``, then the result; or ``late`` alone.

    Attributes
    ----------
    said
        With ``ok``: the result as a sentence.
    message
        With ``error``: the sentence of the error.
    """

    status: Literal["begun", "late", "ok", "error"]
    said: str
    message: str


class NoAnswer(SkyError):
    """A kernel does not answer: it hangs, or no longer has jupyter_sky loaded."""


async def request(
    kernel: KernelFile,
    connection_file: Path,
    content: Mapping[str, Any],
    done_within: float | None = None,
) -> str:
    """Send a request to a kernel, and return the sentence about its result.

    Parameters
    ----------
    kernel
        What the kernel has written of itself.
    connection_file
        Jupyter's connection file of the kernel.
    content
        A `jupyter_sky.notebook.sidebar.actions.ActionRequest`.
    done_within
        Seconds for the result once it has begun; by default, as long as the kernel is there, since
        nodes may wait in a queue for days.

    Raises
    ------
    SkyError
        With the kernel's own sentence, if the request failed.
    NoAnswer
        If it does not begin within `BEGIN_WITHIN` seconds. It does not begin later either: it may
        have been suspended, and who asked has been told that nothing is done, or asked elsewhere.
        Also if it ends before it is done, or takes longer than ``done_within``.
    """
    client = AsyncKernelClient(context=_zmq_context())
    try:
        await asyncio.to_thread(client.load_connection_file, str(connection_file))
    except (OSError, ValueError) as error:
        raise NoAnswer(f"the kernel cannot be reached: {error}") from None
    client.start_channels(shell=False, iopub=False, stdin=False, hb=False, control=True)
    try:
        begin_by = time.time() + BEGIN_WITHIN - _ON_ITS_WAY
        message = client.session.msg(CONTROL_MESSAGE_TYPE, {**content, BEGIN_BY: begin_by})
        client.control_channel.send(message)
        async with asyncio.timeout(BEGIN_WITHIN) as limit:
            reply = await _reply_to(client, message["header"]["msg_id"])
            now = asyncio.get_running_loop().time()
            limit.reschedule(None if done_within is None else now + done_within)
            if reply.get("status") == "begun":
                reply = await _result(client, message["header"]["msg_id"], kernel)
    except TimeoutError:
        raise NoAnswer("the kernel does not answer") from None
    finally:
        client.stop_channels()
    if reply.get("status") == "late":
        raise NoAnswer("the kernel does not answer")
    if reply.get("status") != "ok":
        raise SkyError(
            str(reply.get("message", "that did not work, and the kernel gave no reason"))
        )
    return str(reply.get("said", ""))


async def _reply_to(client: AsyncKernelClient, request_id: str) -> KernelReply:
    while True:
        message = await client.control_channel.get_msg()
        if message["parent_header"].get("msg_id") == request_id:
            return cast(KernelReply, message["content"])


async def _result(client: AsyncKernelClient, request_id: str, kernel: KernelFile) -> KernelReply:
    """Wait for the second reply; nothing else tells that a kernel has ended or was restarted."""
    replying = asyncio.ensure_future(_reply_to(client, request_id))
    try:
        is_there = True
        while is_there:
            is_there = kernel.is_live
            # It may have replied before it ended.
            if (await asyncio.wait({replying}, timeout=_LOOK_EVERY))[0]:
                return replying.result()
        raise NoAnswer("the kernel ended before it was done")
    finally:
        replying.cancel()


@cache
def _zmq_context() -> zmq.asyncio.Context:
    # One for all requests, since each context has its own thread.
    return zmq.asyncio.Context()
