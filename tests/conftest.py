"""What every test stands on: a registry of its own, and nothing left behind.

Several processes may run tests at a time; what is said here for a session holds for each of them.
"""

from __future__ import annotations

import itertools
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.lab import Lab, missing
from tests.schedule import (
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]


# How fast an example is depends on what other tests do meanwhile.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

_numbers = itertools.count()


@pytest.fixture(autouse=True)
def stop_key() -> None:
    """Have Ctrl-C heard: a shell's background jobs start without, and event loops take it away.

    A loop gives it back when it ends, but not in a test that ran out of time.
    """
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session", autouse=True)
def workplace() -> Iterator[Path]:
    """Keep what clusters and kernels write, and their sockets, in a folder of the tests' own."""
    folder = Path(tempfile.mkdtemp(prefix="sky-"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_RUNTIME_DIR", str(folder / "jupyter"))
        patch.setenv("IPYTHONDIR", str(folder / "ipython"))
        yield folder
    left = processes_of(folder)
    for process in left:
        process.kill()
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes were left behind: {left}"


@pytest.fixture(scope="module", autouse=True)
def home(workplace: Path) -> Iterator[Path]:
    """Give each file a registry of its own: it finds no cluster but those of its own tests."""
    folder = workplace / str(next(_numbers))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(folder))
        yield folder


@contextmanager
def shared_registry(workplace: Path) -> Iterator[None]:
    """Use the registry of what is shared by tests of several files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(workplace / "shared"))
        yield


def processes_of(folder: Path) -> list[psutil.Process]:
    """Return the agents, fork servers and ranks whose files are below ``folder``."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(folder) in part for part in process.info["cmdline"] or ()):
            found.append(process)
    return found


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four hosts with SSH servers; a test leaves them, and their cables, as they were."""
    if reason := missing():
        pytest.skip(reason)
    made = Lab.start(4)
    yield made
    made.stop()
