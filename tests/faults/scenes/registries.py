"""A registry that is held, damaged, or of a newer version: clusters that are up need none."""

from __future__ import annotations

import contextlib
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from tests.cluster.conftest import start
from tests.faults.experience import Experience
from tests.faults.scenes.scene import Scene


@contextlib.contextmanager
def _held() -> Iterator[None]:
    """Hold the registry, as a program does that writes without end."""
    holder = sqlite3.connect(home() / "registry.sqlite")
    holder.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        holder.rollback()
        holder.close()


@contextlib.contextmanager
def _replaced(make: Callable[[], object]) -> Iterator[None]:
    """Put something else in the place of the registry."""
    path = home() / "registry.sqlite"
    kept = path.with_suffix(".kept")
    path.rename(kept)
    try:
        make()
        yield
    finally:
        kept.replace(path)


def _damaged() -> AbstractContextManager[None]:
    path = home() / "registry.sqlite"
    return _replaced(lambda: path.write_bytes(b"no database, and longer than its header" * 100))


def _newer() -> AbstractContextManager[None]:
    def make() -> None:
        with contextlib.closing(sqlite3.connect(home() / "registry.sqlite")) as database:
            database.execute("CREATE TABLE clusters (newer TEXT)")

    return _replaced(make)


def _broken(fault: Callable[[], AbstractContextManager[None]]) -> Callable[[], Experience]:
    """Start a cluster while the registry is broken, and use one that is up meanwhile."""

    def play() -> Experience:
        cells = start(nodes=1, framework=False)
        said: list[str] = []

        def begin() -> None:
            try:
                start(nodes=1, framework=False).cluster.down()
            except SkyError as error:
                said.append(str(error))

        with fault():
            struck = time.monotonic()
            thread = threading.Thread(target=begin)
            thread.start()
            cells.run("pass")
            usable = time.monotonic() - struck
            thread.join()
            known = time.monotonic() - struck
        cells.cluster.down()
        assert registry.find(cells.cluster.name) is None
        return Experience("".join(said), known, usable)

    return play


SCENES = (
    Scene(
        "registry held by another program: a start says so",
        _broken(_held),
        "another program is using it, try again in a moment",
        known=registry.WAIT + 1,
    ),
    Scene(
        "registry damaged: a start says so",
        _broken(_damaged),
        "move it away, a new one is made, and `%sky gc` finds",
    ),
    Scene(
        "registry of a newer version: a start says so",
        _broken(_newer),
        "check that .* no newer jupyter_sky made it",
    ),
)
