"""The Slurm provider: nodes are those of a job, from the queue of the user's own cluster."""

from __future__ import annotations

from jupyter_sky.providers.slurm.provider import Slurm

__all__ = ["Slurm"]
