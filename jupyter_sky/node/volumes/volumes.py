"""The volumes of a node, for its agent: starts the process that keeps them, and sends requests."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_sky.node.packages import overlay
from jupyter_sky.node.volumes.opening import LIST
from jupyter_sky.node.volumes.place import remove_absent
from jupyter_sky.paths import replace_text
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_requests import Handlers
from jupyter_sky.transport.tasks import BackgroundTasks, in_time
from jupyter_sky.transport.volumes.requests import (
    MountRequest,
    WrittenVolume,
    has_only_markers_left,
)

WRITE_BACK_WITHIN = 900.0
"""Seconds to write back what ranks have written, before a node ends that nobody uses."""

_LINE = 64 * 1024 * 1024  # most bytes of an answer, which may name many files
_LAST_WITHIN = 5.0
"""Seconds for a node that a notebook ends, which has had everything written back before."""


_AGAIN_AFTER = 5.0
"""Seconds after which it is written back again: by a node that is about to be taken away, for one.
"""

_MARKERS_WITHIN = 300.0
"""Seconds in which other nodes should have written what the markers of checkpoints wait for."""

_KILLED = "the process that keeps the volumes was killed"
_LOST = (
    f"{_KILLED}: what ranks have written is still there, and after `%sky down` the next cell "
    "starts it again"
)


class Volumes:
    """The volumes of a node.

    Parameters
    ----------
    folder
        The agent's folder.
    socket
        The agent's socket; the process listens on one beside it.
    blobs
        The folder of the node's blobs, where ranks find the list of volumes.

    Attributes
    ----------
    handlers
        The handlers of requests, by name.
    """

    def __init__(self, folder: Path, socket: str, blobs: Path) -> None:
        self._folder = folder
        self._socket = f"{socket}.v"
        self._list = blobs / LIST
        self._told: list[dict[str, Any]] = []  # what the list has, which may be removed
        self._process: asyncio.subprocess.Process | None = None
        self._writing = BackgroundTasks()
        self._is_wanted = False  # that it is written back, after the round that goes on
        self._round: asyncio.Task[None] | None = None
        self._writes_until = 0.0
        self._repeating: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._is_lost = False
        self._starting = asyncio.Lock()
        self.handlers: Handlers = {
            "mount": self._on_mount,
            "write_back": self._on_write_back,
            "volumes": self._on_state,
        }

    @property
    def are_there(self) -> bool:
        """Whether there are any volumes."""
        return self._process is not None

    async def write_back(self, settled: bool = False) -> str | None:
        """Write back what ranks have written, within limits.

        Parameters
        ----------
        settled
            Whether to leave files that have changed in the last seconds.

        Returns
        -------
        str or None
            What could not be written, in words; empty if all was, ``None`` without volumes.
        """
        if self._process is None:
            return None
        try:
            async with asyncio.timeout(WRITE_BACK_WITHIN):
                # The next notebook that asks is told what is written now.
                request = {"op": "write_back", "quietly": True, "settled": settled}
                answer = await self._ask(request)
                until = time.time() + _MARKERS_WITHIN
                while answer and has_only_markers_left(answer["volumes"]) and time.time() < until:
                    await asyncio.sleep(_AGAIN_AFTER)
                    answer = await self._ask(request)
        except TimeoutError:
            return "what ranks have written into volumes was not all written back in time"
        if answer is None:
            return f"{_KILLED}, and what ranks have written stays on the node"
        left = [
            f"{len(each['left'])} files of {each['path']} could not be written to {each['url']} "
            f"({each['trouble']}) and stay on the node"
            if each["left"]
            else each["trouble"]
            for each in answer["volumes"]
            if each["left"] or each["trouble"]
        ]
        return "; ".join(left)

    def begin_write_back(self, until: float = 0.0) -> None:
        """Write back what ranks have written, in the background; if that goes on, once more.

        Parameters
        ----------
        until
            Until when to do so again and again, as ``time.time`` counts; by default, it is done
            once.
        """
        self._is_wanted = True
        if self._round is None or self._round.done():
            self._round = self._writing.spawn(self._write_back_wanted())
        self._writes_until = max(self._writes_until, until)
        if until and (self._repeating is None or self._repeating.done()):
            self._repeating = self._writing.spawn(self._write_back_again())

    async def _write_back_wanted(self) -> None:
        """Write back once for however many runs end meanwhile: each round looks at every file."""
        while self._is_wanted:
            self._is_wanted = False
            await self.write_back()

    async def _write_back_again(self) -> None:
        """Write back what settles, and nothing that is being written: it would be for nothing."""
        while self.are_there and time.time() < self._writes_until:
            await asyncio.sleep(_AGAIN_AFTER)
            await self.write_back(settled=True)

    async def end(self) -> None:
        """Write back what is possible in the time, and remove the volumes except the rest."""
        process, self._process = self._process, None
        if process is None:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WITHIN):
                await self._ask({"op": "end"})
        assert process.stdin is not None
        process.stdin.close()
        try:
            async with asyncio.timeout(_LAST_WITHIN):
                await process.wait()
        except TimeoutError:
            process.kill()
            # Even this may take effect only once a disk answers: nothing is worth waiting for that.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_LAST_WITHIN):
                    await process.wait()
            await self._remove_absent()

    async def _on_mount(self, request: MountRequest) -> Message:
        if self._is_lost:
            return {"trouble": _LOST, "notes": []}
        async with self._starting:
            if self._process is None:
                self._process = await self._start()
        answer = await self._ask({"op": "mount", "volumes": request["volumes"]})
        if answer and not answer["trouble"] and not await self._tell_ranks():
            answer = None
        return answer or {"trouble": "the process that keeps the volumes has ended", "notes": []}

    async def _on_write_back(self, request: Mapping[str, Any]) -> Message:
        if self._process is None:
            return {"volumes": []}
        answer = await self._ask({"op": "write_back"})
        # It may be killed while it writes.
        return answer or {"volumes": [_lost(each) for each in self._told]}

    async def _on_state(self, request: Mapping[str, Any]) -> Message:
        return await self._ask({"op": "state"}) or {"volumes": []}

    async def _tell_ranks(self) -> bool:
        """List the volumes for ranks, which check when a run starts; return whether that worked."""
        if (state := await self._ask({"op": "state"})) is None:
            return False
        keys = ("url", "path", "read_only")
        volumes = [{key: each[key] for key in keys} for each in state["volumes"]]
        self._told = [{**each, "socket": self._socket} for each in volumes]
        replace_text(self._list, json.dumps(self._told))
        return True

    async def _start(self) -> asyncio.subprocess.Process:
        Path(self._socket).unlink(missing_ok=True)
        inherited = os.environ.get("PYTHONPATH", "")
        added = str(overlay.link(self._folder))
        path = os.pathsep.join(filter(None, (inherited, added)))
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-P", "-m", "jupyter_sky.node.volumes.keeper", self._socket),
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path},
            start_new_session=True,
        )
        assert process.stdout is not None
        await process.stdout.readline()
        self._watching = asyncio.get_running_loop().create_task(self._watch(process))
        return process

    async def _watch(self, process: asyncio.subprocess.Process) -> None:
        await process.wait()
        if self._process is process:
            self._is_lost = True
            await self._remove_absent()

    async def _remove_absent(self) -> None:
        """Remove files without content of a process that was killed: nobody fills them any more."""
        places = [Path(each["path"]) for each in self._told]
        # The disk may hang, which was why it had to be killed.
        await in_time(lambda: [*map(remove_absent, places)], _LAST_WITHIN)

    async def _ask(self, request: dict[str, Any]) -> Message | None:
        """Send the process a request; return ``None`` if there is none, or none that answers."""
        if self._process is None and request["op"] != "end":
            return None
        try:
            reader, writer = await asyncio.open_unix_connection(self._socket, limit=_LINE)
        except OSError:
            return None
        try:
            writer.write(json.dumps(request).encode() + b"\n")
            await writer.drain()
            line = await reader.readline()
            answer: Message | None = json.loads(line) if line else None
        except (OSError, ValueError):  # the latter if it was killed while it answered
            return None
        finally:
            writer.close()
        return answer


def _lost(volume: Mapping[str, Any]) -> WrittenVolume:
    return {
        "url": volume["url"],
        "path": volume["path"],
        "files": 0,
        "size": 0,
        "left": [],
        "trouble": f"{volume['path']}: {_LOST}",
    }
