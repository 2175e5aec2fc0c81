"""What every test stands on: a registry of its own, and nothing left behind.

Several processes may run tests at a time; what is said here for a session holds for each of them.
"""

from __future__ import annotations

import gc
import itertools
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pytest
from hypothesis import HealthCheck, settings

from tests.lab import Lab, kernel_ports, missing
from tests.labextension.together import pytest_runtest_teardown, pytest_sessionfinish
from tests.schedule import (
    pytest_collection_modifyitems,
    pytest_xdist_auto_num_workers,
    pytest_xdist_make_scheduler,
)

__all__ = [
    "pytest_collection_modifyitems",
    "pytest_runtest_teardown",
    "pytest_sessionfinish",
    "pytest_xdist_auto_num_workers",
    "pytest_xdist_make_scheduler",
]


# Threads of OpenMP look for work in a loop before they sleep, which takes processor time from other
# tests. torch reads this when it is imported, and kernels and ranks inherit it.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# How fast an example is depends on what other tests do meanwhile.
settings.register_profile("default", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

ENDED_WITHIN = 30.0
"""Seconds for what the last tests have ended, as far as nobody waits for that."""

_numbers = itertools.count()
_folders: dict[str, str] = {}
"""The test file of each folder, which is short for the sake of the sockets in it."""


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Keep Python from looking for garbage among what is imported and collected, then and later."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()
        # What moto, boto3 and torch have is looked through each time, and stays: a sixth of what
        # tests of AWS take.
        young, middle, _ = gc.get_threshold()
        gc.set_threshold(young, middle, 100)


@pytest.hookimpl(tryfirst=True)
def pytest_unconfigure() -> None:
    """Keep pytest from looking five times for garbage among all that the tests have imported."""
    gc.collect()
    gc.freeze()


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
        kernel_ports.reserve()
        yield folder
    psutil.wait_procs(processes_of(folder), ENDED_WITHIN)
    left = kill_processes_of(folder)
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"processes were left behind: {left}; folders: {_folders}"


@pytest.fixture(scope="module", autouse=True)
def home(workplace: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """Give each file a registry of its own: it finds no cluster but those of its own tests."""
    folder = workplace / str(next(_numbers))
    _folders[folder.name] = request.module.__name__
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


def kill_processes_of(folder: Path) -> list[str]:
    """Kill those processes; return the process id and command line of each."""
    found = processes_of(folder)
    for process in found:
        with suppress(psutil.NoSuchProcess):  # a fork server ends with its agent
            process.kill()
    return [f"{each.pid} {' '.join(each.info['cmdline'])}" for each in found]


@pytest.fixture(scope="session")
def lab() -> Iterator[Lab]:
    """Four hosts with SSH servers; a test leaves them, and their cables, as they were."""
    if reason := missing():
        pytest.skip(reason)
    made = Lab.start(4)
    yield made
    made.stop()
