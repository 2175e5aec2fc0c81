"""``%sky logs``: the end of what a rank wrote, and what it goes on to write."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time
from pathlib import Path

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError

_LINES = 1000
_POLL = 0.1  # seconds between two looks at a log that is followed


def show_log(cluster: Cluster, rank: int, tail: int | None = None, follow: bool = False) -> None:
    """Print the end of a rank's log.

    Parameters
    ----------
    cluster
        The cluster.
    rank
        Whose log it is.
    tail
        How many lines; by default as many as fit on a page of a notebook.
    follow
        Whether to go on with what comes, until Ctrl-C. That stops the following and nothing else.
    """
    # Ctrl-C is the end of following, wherever it comes.
    with contextlib.suppress(KeyboardInterrupt) if follow else contextlib.nullcontext():
        data, offset = cluster.log(rank, tail=tail or _LINES)
        left_out = offset - len(data)
        if left_out and (tail is None or data.count(b"\n") < tail):
            print(
                f"[{left_out:,} bytes of this log come before: `%sky logs {rank} --save FILE` has "
                "all of it]"
            )
        # A character can be cut in two by the end of what was written so far.
        decoder = codecs.getincrementaldecoder("utf-8")("replace")
        sys.stdout.write(decoder.decode(data))
        while follow:
            sys.stdout.flush()
            data, size = cluster.log(rank, offset=offset)
            offset += len(data)
            sys.stdout.write(decoder.decode(data))
            if offset >= size:
                time.sleep(_POLL)


def save_log(cluster: Cluster, rank: int, path: str) -> str:
    """Write all of a rank's log to a file, byte by byte, and say so.

    Raises
    ------
    UsageError
        When the file cannot be written.
    """
    written = 0
    try:
        with Path(path).expanduser().open("wb") as file:
            _, size = cluster.log(rank)
            while written < size:
                data, size = cluster.log(rank, offset=written)
                written += file.write(data)
    except OSError as error:
        raise UsageError(f"--save {path}: {error.strerror}; name another file.") from None
    return f"{path} has all that rank {rank} wrote, {written:,} bytes"
