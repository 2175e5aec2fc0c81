"""What scripts and kernels of these tests import is this checkout."""

from __future__ import annotations

from tests.notebook.conftest import checkout

__all__ = ["checkout"]
