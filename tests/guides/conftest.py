"""What the kernels of these tests import is this checkout."""

from __future__ import annotations

from tests.notebook.conftest import checkout, opened

__all__ = ["checkout", "opened"]
