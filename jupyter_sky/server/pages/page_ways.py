"""The ways to pages of nodes: ports of this computer that kernels open for this server."""

from __future__ import annotations

import asyncio
import hmac
import json
from collections import defaultdict
from dataclasses import dataclass, field

from tornado.iostream import IOStream, StreamClosedError
from tornado.tcpclient import TCPClient

from jupyter_sky.cluster.network import handshake
from jupyter_sky.errors import SkyError
from jupyter_sky.server import kernel_client
from jupyter_sky.server.context import ServerContext

_ASKED_WITHIN = 30.0  # seconds
_OPEN_WITHIN = 10.0
_BUFFER = 1024 * 1024  # bytes


@dataclass(frozen=True)
class PageWay:
    """The way to a page, as given by `jupyter_sky.cluster.network.pages`."""

    port: int
    host: str
    key: bytes = field(repr=False)


class PageWays:
    """The known ways to pages; a kernel is only asked again if a way no longer works."""

    def __init__(self) -> None:
        self._ways: dict[tuple[str, str], PageWay] = {}
        self._asking: defaultdict[tuple[str, str], asyncio.Lock] = defaultdict(asyncio.Lock)

    async def open(
        self, context: ServerContext, cluster: str, name: str
    ) -> tuple[PageWay, IOStream]:
        """Return a new connection to a page.

        Raises
        ------
        SkyError
            If there is no such page, or no kernel that leads to it.
        """
        known = self._ways.get((cluster, name))
        if known is not None:
            try:
                return known, await _connect(known)
            except (OSError, StreamClosedError, TimeoutError):
                pass  # its kernel has ended, or the port has another page now
        async with self._asking[cluster, name]:
            way = self._ways.get((cluster, name))
            if way is None or way is known:
                way = self._ways[cluster, name] = await _ask(context, cluster, name)
        try:
            return way, await _connect(way)
        except (OSError, StreamClosedError, TimeoutError):
            raise SkyError("the kernel that leads to this page does not answer.") from None


async def _connect(way: PageWay) -> IOStream:
    async with asyncio.timeout(_OPEN_WITHIN):
        stream = await TCPClient().connect("127.0.0.1", way.port, max_buffer_size=_BUFFER)
        try:
            hello, answer = handshake.hello(way.key)
            await stream.write(hello)
            if not hmac.compare_digest(await stream.read_bytes(handshake.ANSWER), answer):
                raise ConnectionRefusedError
        except BaseException:
            stream.close()
            raise
    return stream


async def _ask(context: ServerContext, cluster: str, name: str) -> PageWay:
    inventory = await context.inventory()
    trouble = SkyError("no notebook is connected to the cluster of this page: attach it first.")
    for report in inventory.live_reports(cluster):
        file = context.reports.connection_file(report.kernel.kernel)
        message = {"action": "page", "cluster": cluster, "page": name}
        try:
            async with asyncio.timeout(_ASKED_WITHIN):
                told = json.loads(await kernel_client.request(report.kernel, file, message))
            return PageWay(int(told["port"]), str(told["host"]), bytes.fromhex(told["key"]))
        except TimeoutError:
            trouble = SkyError("the kernel that leads to this page does not answer.")
        except SkyError as error:
            trouble = error
        except (ValueError, TypeError, KeyError):
            trouble = SkyError("the kernel that leads to this page is of another version.")
    raise trouble
