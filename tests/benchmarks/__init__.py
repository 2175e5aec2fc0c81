"""``python -m tests.benchmarks`` measures what the design promises and prints a table."""

from __future__ import annotations
