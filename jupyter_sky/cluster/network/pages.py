"""Web pages that nodes serve, such as dashboards: which there are, and how the browser gets them.

The browser asks Jupyter's server, which asks this process for the way, and connects to a `Forward`
with a key that only the two processes know. So no other user of this computer reaches the page.
"""

from __future__ import annotations

import json
import os
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.forward import Forward
from jupyter_sky.cluster.snapshot import PageView
from jupyter_sky.errors import SkyError

_KEY_BYTES = 32


@dataclass(frozen=True)
class Page:
    """A page that a node serves.

    Attributes
    ----------
    name
        What it is called in addresses, unique in its cluster.
    label
        The text of links to it.
    rank
        The rank whose node reaches it.
    addr, port
        Where it is served, as the node reaches it.
    path
        The path of its first page, without a leading slash.
    secure
        The TLS settings to reach it with; ``None`` for plain HTTP.
    """

    name: str
    label: str
    rank: int
    addr: str
    port: int
    path: str = ""
    secure: ssl.SSLContext | None = field(default=None, repr=False)


@dataclass(frozen=True)
class PageRoute:
    """How Jupyter's server reaches a page.

    Attributes
    ----------
    port
        A port of this computer.
    key
        The key for the handshake there.
    host
        The page's own host and port, for the ``Host`` header.
    """

    port: int
    host: str
    key: bytes = field(repr=False)

    def as_json(self) -> str:
        """Return it as JSON, for the server."""
        return json.dumps({"port": self.port, "host": self.host, "key": self.key.hex()})


class Pages:
    """The pages of a cluster's nodes.

    Parameters
    ----------
    cluster
        The cluster's id.
    node
        Returns the connection to the node of a rank.
    changed
        Called when a page was added or removed.
    """

    def __init__(
        self, cluster: str, node: Callable[[int], Connection], changed: Callable[[], None]
    ) -> None:
        self._cluster = cluster
        self._node = node
        self._changed = changed
        self._pages: dict[str, Page] = {}
        self._forwards: dict[str, tuple[Forward, PageRoute]] = {}

    def show(self, page: Page) -> None:
        """Make a page available, in place of a former one of its name."""
        if self._pages.get(page.name) != page:
            self._close(page.name)
            self._pages[page.name] = page
            self._changed()

    def hide(self, name: str) -> None:
        """Make a page unavailable."""
        if self._pages.pop(name, None):
            self._close(name)
            self._changed()

    def close(self) -> None:
        """Close the way to each page."""
        for name in list(self._pages):
            self.hide(name)

    def way(self, name: str) -> PageRoute:
        """Return the way to a page; blocks for a moment, so never in the background loop.

        Raises
        ------
        SkyError
            When there is no such page.
        """
        page = self._pages.get(name)
        if page is None:
            raise SkyError("that page is no longer shown.")
        if name not in self._forwards:
            key = secrets.token_bytes(_KEY_BYTES)
            forward = Forward(
                partial(self._node, page.rank), page.addr, page.port, key=key, secure=page.secure
            )
            host = f"[{page.addr}]" if ":" in page.addr else page.addr
            self._forwards[name] = forward, PageRoute(forward.port, f"{host}:{page.port}", key)
        return self._forwards[name][1]

    def views(self) -> list[PageView]:
        """Return the pages as snapshots have them."""
        pages = list(self._pages.values())  # a copy: they change in the loop
        return [PageView(label=each.label, path=self._path(each)) for each in pages]

    def link(self, name: str) -> str | None:
        """Return the address of a page, for the browser that shows this notebook, if one does.

        It is a path that begins with a slash: only the browser knows the server's host name.
        """
        base, page = _base_url(), self._pages.get(name)
        return None if base is None or page is None else f"{base}{self._path(page)}"

    def _path(self, page: Page) -> str:
        return f"jupyter-sky/forward/{self._cluster}/{page.name}/{page.path}"

    def _close(self, name: str) -> None:
        if former := self._forwards.pop(name, None):
            former[0].close()


def _base_url() -> str | None:
    """Return the base path of this kernel's Jupyter server; ``None`` without a server.

    The server is the process that started the kernel, and writes its address into a file.
    """
    server = os.environ.get("JPY_PARENT_PID", "")
    try:
        from jupyter_core.paths import jupyter_runtime_dir

        found = json.loads(Path(jupyter_runtime_dir(), f"jpserver-{server}.json").read_bytes())
        return str(found["base_url"])
    except (ImportError, OSError, ValueError, TypeError, KeyError):
        return None
