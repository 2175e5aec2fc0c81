"""The SSH provider: nodes are machines that the person can log in to."""

from __future__ import annotations

from jupyter_sky.providers.ssh.provider import SSH

__all__ = ["SSH"]
