"""Processes that are forked by one that has imported what they need."""

from __future__ import annotations

import multiprocessing
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from typing import Any


def forks_with(*modules: str) -> ForkServerContext:
    """Return what forks processes in which modules are imported.

    Python has one such server for a whole process, and what it imports is settled when it starts.
    One that tests of another file have started is ended here: with it, each process of a test
    would import torch by itself.
    """
    context = multiprocessing.get_context("forkserver")
    server: Any = forkserver._forkserver
    if server._preload_modules != list(modules):
        server._stop()  # nothing else does, and Python's own tests end it so
        context.set_forkserver_preload(list(modules))
    return context
