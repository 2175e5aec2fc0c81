"""Finding and killing processes that users' code has started, which may end at any moment."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator

import psutil


def find(
    is_meant: Callable[[psutil.Process], bool], below: int | None = None
) -> Iterator[psutil.Process]:
    """Yield processes, each before the next one is looked at.

    Parameters
    ----------
    is_meant
        Returns whether a process is one of them; it is not if that raises an error.
    below
        The process that they descend from; ``None`` to look at all of the machine.
    """
    # If no descriptor is left for reading /proc, none is found.
    with contextlib.suppress(psutil.Error, OSError):
        root = None if below is None else psutil.Process(below)
        for process in root.children(recursive=True) if root else psutil.process_iter():
            with contextlib.suppress(psutil.Error, OSError):
                if is_meant(process):
                    yield process


def kill_each(processes: Iterable[psutil.Process]) -> None:
    """Kill processes, as far as they are there and ours."""
    for process in processes:
        with contextlib.suppress(psutil.Error, OSError):
            process.kill()
