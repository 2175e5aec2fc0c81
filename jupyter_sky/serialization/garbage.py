"""Python's search for garbage, while many objects are made that are none."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def not_searched_for() -> Iterator[None]:
    """Have Python not look for garbage within this context, unless it would not anyway.

    A pickle makes objects by the thousand, and each time that there are many new ones Python goes
    through all objects of the process: with torch, that takes as long as the pickle itself.
    """
    if not gc.isenabled():
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
