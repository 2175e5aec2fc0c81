"""Imports libraries so that Ctrl-C leaves none of them half imported.

A package whose import is interrupted is broken until the process ends: Python forgets the package,
keeps those of its modules that were complete, and then does not enter these into the package that
is imported next. ``yaml`` has no ``error`` then, and ``boto3`` no ``utils``.
"""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module


def import_whole(*names: str) -> None:
    """Import modules in a thread, since only the main thread is interrupted.

    Parameters
    ----------
    names
        The modules; an ``import`` after this finds them.

    Raises
    ------
    ImportError
        If there is no such module.
    KeyboardInterrupt
        If Ctrl-C was pressed, once they are imported.
    """
    if all(sys.modules.get(name) for name in names):
        return
    with ThreadPoolExecutor(1) as thread:
        thread.submit(lambda: [import_module(name) for name in names]).result()
