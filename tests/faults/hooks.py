"""Hooks of plugins that raise and that hang; ranks import this file, so it imports little."""

from __future__ import annotations

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
