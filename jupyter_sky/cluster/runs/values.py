"""Fetches and unpickles values that ranks have packed, in the user's thread."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import psutil

from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_bytes, format_time_ago
from jupyter_sky.serialization import blobs, cell_sources, garbage
from jupyter_sky.serialization.object_tokens.kinds import MAX_OBJECTS, is_mutable
from jupyter_sky.serialization.object_tokens.tokens import Tokens
from jupyter_sky.serialization.pickling import load_with_memo, main_namespace
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.blobs.packed import Packed

_AT_ONCE = 8  # blobs of one value
_BRIEF = 0.5  # seconds for which a broken link is not mentioned


def load_all(
    packed: Mapping[int, Packed],
    names: Mapping[int, Sequence[str]],
    connection: Callable[[int], Connection],
    learn: Callable[[dict[int, Any]], None],
    notice: Callable[[str], object],
) -> dict[int, Any]:
    """Return what ranks have packed, by rank.

    Parameters
    ----------
    packed
        What they packed.
    names
        The names that were asked for of each; none if it was the value that a function returned.
    connection
        Returns the connection to the agent of a rank.
    learn, notice
        As of `load`.

    Raises
    ------
    SkyError
        If a value cannot be unpickled here.
    """
    found = {}
    for rank in sorted(packed):
        try:
            found[rank] = load(packed[rank], connection(rank), learn, notice)
        except SkyError:
            raise
        except Exception as error:  # unpickling runs code of the user's and of libraries
            what = ", ".join(names.get(rank, ())) or "the returned value"
            raise SkyError(
                f"{what} of rank {rank} arrived, but could not be loaded here: "
                f"{type(error).__name__}: {error}"
            ) from error
    return found


def load(
    packed: Packed,
    connection: Connection,
    learn: Callable[[dict[int, Any]], None],
    notice: Callable[[str], object] = lambda text: None,
) -> Any:
    """Return the value that a rank has packed; its blobs are fetched concurrently.

    Parameters
    ----------
    packed
        What the rank packed.
    connection
        The connection to its agent.
    learn
        Called with the mutable objects in it, by their tokens.
    notice
        Called with why it waits, where there is no link to the node.

    Raises
    ------
    Interrupted
        If the user stops it while they are on their way.
    """
    fetched: Mapping[str, memoryview] = {}
    if references := blobs.references(packed):
        size = sum(references.values())
        _check_room(blobs.memory_size(packed))
        try:
            fetching = _fetch(references, connection)
            fetched = event_loop.wait(fetching, _LinkNotice(connection, notice))
        except KeyboardInterrupt:
            raise Interrupted(
                f"stopped while {format_bytes(size)} were on their way from "
                f"{connection.name}; the run itself is over."
            ) from None
    cell_sources.receive(packed.get("cells", {}), main_namespace())
    with garbage.not_searched_for():
        value, memo = load_with_memo(*blobs.parts_in(packed, fetched))
        if "tokens" in packed and len(memo) <= MAX_OBJECTS:
            tokens = Tokens(**packed["tokens"])
            learn({tokens.of(place): each for place, each in memo.items() if is_mutable(each)})
    return value


def _check_room(size: int) -> None:
    """Refuse a value that does not fit into this computer's free memory, before any is taken."""
    if size > (free := psutil.virtual_memory().available):
        raise SkyError(
            f"what was asked for takes {format_bytes(size)}, and {format_bytes(free)} of memory is "
            f"free here: ask for a part of it, or save it on the ranks."
        )


class _LinkNotice:
    """Says that the link to a node is broken for longer than a moment, and that it is there again.

    Parameters
    ----------
    connection
        The connection to the node.
    notice
        Called with it.
    """

    def __init__(self, connection: Connection, notice: Callable[[str], object]) -> None:
        self._connection = connection
        self._notice = notice
        self._is_told = False

    def __call__(self) -> None:
        name, since = self._connection.name, self._connection.broken_since
        # The loop's clock is the monotonic one.
        seconds = 0.0 if since is None else time.monotonic() - since
        if since is None and self._is_told:
            self._is_told = False
            self._notice(f"connected to {name} again")
        elif seconds > _BRIEF and not self._is_told:
            self._is_told = True
            self._notice(
                f"no connection to {name} since {format_time_ago(seconds)}; the run is over, and "
                "what it brings comes when there is one"
            )


async def _fetch(references: Mapping[str, int], connection: Connection) -> dict[str, memoryview]:
    """Return blobs, whose sizes these are, by digest."""
    turns = asyncio.Semaphore(_AT_ONCE)

    async def fetch(key: str, size: int) -> memoryview:
        async with turns:
            blob = await connection.fetch(key, size)
            connection.uploads.note_arrived(key)  # so it is not sent back
            return blob

    fetched = await asyncio.gather(*map(fetch, references, references.values()))
    return dict(zip(references, fetched, strict=True))
