"""Our own displays, without ipykernel's costly flush before each display."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from IPython import get_ipython


@contextlib.contextmanager
def flushing_what_waits() -> Iterator[None]:
    """Keep displays within a block after earlier printed output, but flush only what is pending.

    ipykernel flushes both streams before each display, and waits twice for its output thread: as
    long as a whole short cell takes. Usually nothing was printed since, and there is nothing to
    wait for. This also applies to displays in other threads meanwhile.
    """
    publisher: Any = getattr(get_ipython(), "display_pub", None)
    if not hasattr(publisher, "_flush_streams") or "_flush_streams" in vars(publisher):
        yield  # no kernel, or another kind; or already within such a block
        return
    vars(publisher)["_flush_streams"] = _flush_what_waits
    try:
        yield
    finally:
        vars(publisher).pop("_flush_streams", None)


def _flush_what_waits() -> None:
    """Flush the streams that were written to since they were last flushed."""
    for stream in (sys.stdout, sys.stderr):
        # Always flush objects that are not a kernel's streams, or cannot tell.
        if getattr(stream, "_flush_pending", True):
            stream.flush()
