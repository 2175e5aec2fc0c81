"""The themes: each file measures one, and returns rows of the table."""

from __future__ import annotations
