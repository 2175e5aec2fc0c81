"""The tables of the registry, and what to do where they cannot be used."""

from __future__ import annotations

import contextlib
import os
import sqlite3

_CLUSTERS = """
CREATE TABLE IF NOT EXISTS clusters (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    provider TEXT NOT NULL,
    spec TEXT NOT NULL,
    machines TEXT NOT NULL DEFAULT '[]',
    created REAL NOT NULL
)
"""

_OWED_ENDS = """
CREATE TABLE IF NOT EXISTS owed_ends (
    number INTEGER PRIMARY KEY,
    cluster TEXT NOT NULL,
    name TEXT NOT NULL,
    provider TEXT NOT NULL,
    machine TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL
)
"""

_SPENT_AT_RATE = """
CREATE TABLE IF NOT EXISTS spent_at_rate (
    name TEXT NOT NULL,
    place TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    price REAL NOT NULL,
    nodes INTEGER NOT NULL,
    gpus INTEGER NOT NULL
)
"""

_SPENT = """
CREATE TABLE IF NOT EXISTS spent (
    name TEXT NOT NULL,
    place TEXT NOT NULL,
    since REAL NOT NULL,
    until REAL NOT NULL,
    price REAL NOT NULL
)
"""
"""What earlier versions write, and kernels go on to write that have them loaded."""

ALL = (_CLUSTERS, _OWED_ENDS, _SPENT_AT_RATE, _SPENT)


def advice(error: sqlite3.Error) -> str:
    """Return what to do about an error of the database."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return "another program is using it, try again in a moment"
        case sqlite3.SQLITE_FULL | sqlite3.SQLITE_IOERR:
            return "free some space on its disk, and try again"
        case sqlite3.SQLITE_NOTADB | sqlite3.SQLITE_CORRUPT:
            return "move it away, a new one is made, and `%sky gc` finds what clusters have left"
        case sqlite3.SQLITE_CANTOPEN if not _may_open_files():
            return "there are as many files open as may be, close some or raise `ulimit -n`"
        case _:
            return "check that you may write to it, and that no newer jupyter_sky made it"


def _may_open_files() -> bool:
    """Return whether this process may open what a database takes: file, journal and folder."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(3):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return False
    return True
