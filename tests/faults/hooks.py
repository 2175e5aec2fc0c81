"""Hooks of plugins that raise, hang or end the process; ranks import this, so it imports little."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator


def raises(info: object) -> Iterator[None]:
    """Raise before the rank has entered its group."""
    raise OSError("no licence server")
    yield


def hangs(info: object) -> Iterator[None]:
    """Never come to an end."""
    while True:
        time.sleep(0.1)
    yield


def ends(info: object) -> Iterator[None]:
    """End the process, as a library may that is written in another language."""
    print("no licence file", flush=True)
    os._exit(3)
    yield
