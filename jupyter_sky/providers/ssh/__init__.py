"""The SSH provider: nodes are hosts that the user can log in to."""

from __future__ import annotations

from jupyter_sky.providers.ssh.provider import SSH

__all__ = ["SSH"]
