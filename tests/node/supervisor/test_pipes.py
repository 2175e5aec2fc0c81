"""What a rank writes to its two streams, read by its agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from jupyter_sky.node.rank import streams
from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.output.pipes import OutputPipes
from jupyter_sky.transport.streams import mark
from tests.waiting import PATIENCE


@contextlib.contextmanager
def opened(folder: Path, found: list[bytes]) -> Iterator[tuple[OutputPipes, list[int]]]:
    """Provide pipes that add what they read to ``found``, and the ends to write to."""
    theirs: list[int] = []
    log = LogFile(folder / "rank0.log")
    pipes = OutputPipes(log, lambda stream, data, *_: found.append(data))
    pipes.open(theirs)
    try:
        yield pipes, theirs
    finally:
        for fd in theirs:
            os.close(fd)
        pipes.close()


def read_at_once(folder: Path, stdout: Sequence[bytes], stderr: Sequence[bytes]) -> list[bytes]:
    """Return the pieces of both streams as they are passed on, when all is there to be read."""
    found: list[bytes] = []

    async def read() -> None:
        with opened(folder, found) as (_, theirs):
            for fd, written in zip(theirs[:2], (stdout, stderr), strict=True):
                os.write(fd, b"".join(written))
            while len(b"".join(found)) < sum(
                len(piece) for piece in (*stdout, *stderr) if not piece.startswith(b"\x00")
            ):
                await asyncio.sleep(0)

    asyncio.run(asyncio.wait_for(read(), PATIENCE))
    return found


def test_what_a_program_writes_comes_behind_what_python_wrote_to_the_other_stream(
    tmp_path: Path,
) -> None:
    stdout = [b"one\n", mark(False, 1), b"from a program\n", mark(True, 2), b"five\n"]
    stderr = [mark(True, 1), b"two\n", mark(False, 2)]
    pieces = read_at_once(tmp_path, stdout, stderr)
    assert pieces == [b"one\n", b"two\n", b"from a program\n", b"five\n"]


def test_the_streams_take_turns_although_all_is_read_at_once(tmp_path: Path) -> None:
    stdout = [b"a\n", mark(False, 1), mark(True, 2), b"c\n", mark(False, 3)]
    stderr = [mark(True, 1), b"b\n", mark(False, 2), mark(True, 3), b"d\n"]
    assert read_at_once(tmp_path, stdout, stderr) == [b"a\n", b"b\n", b"c\n", b"d\n"]


def test_what_python_writes_first_keeps_its_place_when_the_other_stream_is_read_before_it(
    tmp_path: Path,
) -> None:
    found: list[bytes] = []

    async def read() -> None:
        with opened(tmp_path, found) as (pipes, theirs):
            order = streams._Order()
            out, err = (streams._text_stream(fd, order) for fd in theirs[:2])
            out.write("one\n")
            pipes.drain()
            out.write("two\n")
            err.write("three\n")
            pipes._read(next(fd for fd, name in pipes._streams.items() if name == "stderr"))
            pipes.drain()

    asyncio.run(asyncio.wait_for(read(), PATIENCE))
    assert b"".join(found) == b"one\ntwo\nthree\n"
