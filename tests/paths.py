"""Where tests find what is in the repository."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[1]
LABEXTENSION = ROOT / "labextension"
NOTEBOOKS = ROOT / "notebooks"
