"""The tables of the registry, and what to do where they cannot be used; `ledger` has its own."""

from __future__ import annotations

import contextlib
import os
import sqlite3

CLUSTERS = """
CREATE TABLE IF NOT EXISTS clusters (
    id TEXT PRIMARY KEY,
    name TEXT NOT NULL UNIQUE,
    provider TEXT NOT NULL,
    spec TEXT NOT NULL,
    machines TEXT NOT NULL DEFAULT '[]',
    created REAL NOT NULL
)
"""

OWED_ENDS = """
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


def is_sound(spec: object, machines: object) -> bool:
    """Return whether a row has what is asked of all rows: one that has not keeps no other away."""
    return (
        isinstance(spec, dict)
        and isinstance(spec.get("nodes"), int)
        and _is_meter(spec.get("meter"))
        and _is_rent(spec.get("rent"))
        and _is_ends_by(spec.get("ends_by"))
        and isinstance(machines, list)
        and all(isinstance(each, dict) and _are_nodes(each.get("nodes")) for each in machines)
    )


def _is_meter(kept: object) -> bool:
    match kept:
        case None | [int() | float(), int() | float()]:
            return True
        case _:
            return False


def _is_rent(kept: object) -> bool:
    match kept:
        case None | {
            "price": None | int() | float(),
            "nodes": int(),
            "gpus": int(),
            "until": int() | float(),
        }:
            return True
        case _:
            return False


def _is_ends_by(kept: object) -> bool:
    match kept:
        case None | {"time": int() | float(), "is_idle": bool()}:
            return True
        case _:
            return False


def _are_nodes(kept: object) -> bool:
    return isinstance(kept, list) and all(
        isinstance(each, dict) and isinstance(each.get("ranks", []), list) for each in kept
    )


def _may_open_files() -> bool:
    """Return whether this process may open what a database takes: file, journal and folder."""
    with contextlib.ExitStack() as opened:
        try:
            for _ in range(3):
                opened.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError:
            return False
    return True
