"""``%sky logs``: the end of what a rank wrote, and what it goes on to write."""

from __future__ import annotations

import codecs
import contextlib
import sys
import time

from jupyter_sky.cluster.cluster import Cluster

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
            print(f"[{left_out:,} bytes of this log come before]")
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
