"""What is installed on a node, under the names that a person types."""

from __future__ import annotations

from jupyter_sky.providers.spec import Image, PipIndex

__all__ = ["Image", "PipIndex"]
