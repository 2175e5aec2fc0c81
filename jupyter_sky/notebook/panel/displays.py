"""Displays of our own, which wait for less than ipykernel has each display wait for."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import Any

from IPython import get_ipython


@contextlib.contextmanager
def flushing_what_waits() -> Iterator[None]:
    """Let what is displayed in a block stand behind what was printed, as ever, but cheaper.

    ipykernel flushes both streams before each display, and waits twice until its output thread has
    woken and done so: as long as a short cell takes in all. Mostly nothing was printed since, and
    there is nothing to wait for. What is displayed meanwhile in another thread is served as well.
    """
    publisher: Any = getattr(get_ipython(), "display_pub", None)
    if not hasattr(publisher, "_flush_streams") or "_flush_streams" in vars(publisher):
        yield  # no kernel, or another one; or one of these around this one
        return
    vars(publisher)["_flush_streams"] = _flush_what_waits
    try:
        yield
    finally:
        vars(publisher).pop("_flush_streams", None)


def _flush_what_waits() -> None:
    """Flush the streams to which something was written since they were flushed last."""
    for stream in (sys.stdout, sys.stderr):
        # What is no stream of a kernel, or does not say so, is flushed.
        if getattr(stream, "_flush_pending", True):
            stream.flush()
