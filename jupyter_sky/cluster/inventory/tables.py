"""The tables of the registry; `ledger` has its own."""

from __future__ import annotations

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
