"""The pipes that a rank prints into, read in the order in which it has printed."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import Callable

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.transport.streams import FIRST_PLACE, LineJoiner, MarkReader, Piece

_READ = 256 * 1024
_ROUNDS = 4  # rounds of reading, in which everything that pipes can hold is read


class OutputPipes:
    """Pipes for stdout, stderr and what goes into the log alone.

    Parameters
    ----------
    log
        Gets everything.
    on_output
        Called with the stream, what was printed, where the log has it, if it does, and the number
        of the call that has printed it.
    """

    def __init__(
        self, log: LogFile, on_output: Callable[[str, bytes, int | None, int], None]
    ) -> None:
        self._log = log
        self._on_output = on_output
        self._streams: dict[int, str] = {}
        self._poll = select.poll()
        self._marks: dict[int, MarkReader] = {}
        self._held: list[tuple[str, Piece]] = []
        self._place = FIRST_PLACE
        self._joiner = LineJoiner()

    def open(self, theirs: list[int]) -> None:
        """Open the pipes of a new process; add the ends that it writes to."""
        for stream in ("stdout", "stderr", "log"):
            read, write = os.pipe()
            theirs.append(write)
            os.set_blocking(read, False)
            asyncio.get_running_loop().add_reader(read, self._on_readable)
            self._streams[read], self._marks[read] = stream, MarkReader()
            self._poll.register(read, select.POLLIN)

    def drain(self) -> None:
        """Read everything that was written so far."""
        # It is in the pipes, and read in a few rounds; some process may write for ever.
        for _ in range(_ROUNDS):
            if not self._read_what_is_there():
                return
        self._read_held_soon()

    def close(self) -> None:
        """Close the pipes of an ended process, after reading them."""
        self.drain()
        self._pass_on_held()
        for fd in list(self._streams):
            self._close(fd)
        self._place = FIRST_PLACE

    def _read_what_is_there(self) -> bool:
        # Poll all pipes at once: usually there is nothing.
        return bool(self._held or self._poll.poll(0)) and self._read_all()

    def _on_readable(self) -> None:
        self._read_all()
        self._read_held_soon()

    def _read_held_soon(self) -> None:
        if self._held:
            # The data that precedes it is still on its way, or there is none.
            asyncio.get_running_loop().call_soon(self._on_readable)

    def _read_all(self) -> bool:
        """Read each pipe once and pass on what is in order; return whether there was any data."""
        # Data written before an already known place has been read by now.
        known = self._place
        found = [self._read(fd) for fd in list(self._streams)]
        self._pass_on_held(known if any(found) else None)
        return any(found)

    def _pass_on_held(self, until: int | None = None) -> None:
        """Pass on the pieces up to a place in the order; by default all."""
        held = sorted(self._held, key=lambda entry: entry[1].place)
        self._held = [entry for entry in held if until is not None and entry[1].place > until]
        for stream, piece in held[: len(held) - len(self._held)]:
            self._pass_on(stream, piece)

    def _read(self, fd: int) -> bool:
        """Read a pipe, and hold each piece with its place in the order."""
        try:
            data = os.read(fd, _READ)
        except (BlockingIOError, InterruptedError):
            return False
        stream, reader = self._streams[fd], self._marks[fd]
        if not data:
            if (rest := reader.end()).data:
                self._held.append((stream, rest._replace(place=self._place)))
            self._close(fd)
            return False
        for piece in reader.split(data):
            place = max(piece.place, self._place | 1) if piece.place % 2 else piece.place
            self._place = max(self._place, place)
            if piece.data:
                self._held.append((stream, piece._replace(place=place)))
        return True

    def _pass_on(self, stream: str, piece: Piece) -> None:
        if gap := self._joiner.between((stream, piece.call), piece.data):
            self._log.append(gap)
        offset = self._log.append(piece.data)
        self._log.index.add(stream, offset)
        self._on_output(stream, piece.data, offset, piece.call)

    def _close(self, fd: int) -> None:
        asyncio.get_running_loop().remove_reader(fd)
        self._poll.unregister(fd)
        del self._streams[fd], self._marks[fd]
        os.close(fd)
