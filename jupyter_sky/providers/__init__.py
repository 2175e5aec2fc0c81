"""Where nodes come from: a package per provider; `base` says what a provider implements."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jupyter_sky.providers.base import Provider

_NAMES = ("local", "ssh", "aws", "slurm")


def providers() -> Mapping[str, Provider]:
    """Return the providers by name, without settings, for finding the registry's machines."""
    return _Providers()


class _Providers(Mapping[str, "Provider"]):
    """Imports providers on demand: a third of our modules belongs to the remote ones."""

    def __getitem__(self, name: str) -> Provider:
        if name == "local":
            from jupyter_sky.providers.local import Local

            return Local()
        if name == "ssh":
            from jupyter_sky.providers.ssh.provider import SSH

            return SSH()
        if name == "aws":
            from jupyter_sky.providers.aws import AWS

            return AWS()
        if name == "slurm":
            from jupyter_sky.providers.slurm.provider import Slurm

            return Slurm()
        raise KeyError(name)

    def __contains__(self, name: object) -> bool:
        return name in _NAMES

    def __iter__(self) -> Iterator[str]:
        return iter(_NAMES)

    def __len__(self) -> int:
        return len(_NAMES)
