"""The local provider: nodes are processes of this computer."""

from __future__ import annotations

from jupyter_sky.providers.local.provider import Local

__all__ = ["Local"]
