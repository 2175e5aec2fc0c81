"""``%sky logs``: the end of a rank's log, and what is added to it."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time
from argparse import Namespace
from pathlib import Path

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.notebook.commands.context import CommandContext

_LINES = 1000
_POLL_INTERVAL = 0.1  # seconds, while a log is followed


def logs(context: CommandContext, options: Namespace) -> None:
    """Print a rank's log, or save it to a file."""
    with context.visited_cluster(options.cluster) as cluster:
        rank = options.rank or 0
        if rank not in cluster.all_ranks:
            raise UsageError(f"there is no rank {rank}: {format_ranks(cluster.all_ranks)}.")
        if options.save:
            print(_save_log(cluster, rank, options.save))
        else:
            _show_log(cluster, rank, options.tail, options.follow)


def _show_log(cluster: Cluster, rank: int, tail: int | None, follow: bool) -> None:
    """Print the end of a rank's log.

    Parameters
    ----------
    cluster
        The cluster.
    rank
        The rank.
    tail
        How many lines; None stands for `_LINES`.
    follow
        Whether to go on with what is added, until Ctrl-C, which stops nothing else.
    """
    # Ctrl-C ends the following, wherever it comes.
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
                time.sleep(_POLL_INTERVAL)


def _save_log(cluster: Cluster, rank: int, path: str) -> str:
    """Write all of a rank's log to a file, and return a sentence about it.

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
