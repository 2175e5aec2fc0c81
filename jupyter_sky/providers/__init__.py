"""Where nodes come from: a package for each provider; `base` says what a provider implements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_sky.providers.base import Provider


def providers() -> Mapping[str, Provider]:
    """Return the providers by name, without settings: they find the machines of the registry."""
    from jupyter_sky.providers.aws import AWS
    from jupyter_sky.providers.local import Local
    from jupyter_sky.providers.slurm.provider import Slurm
    from jupyter_sky.providers.ssh import SSH

    return {"local": Local(), "ssh": SSH(), "aws": AWS(), "slurm": Slurm()}
