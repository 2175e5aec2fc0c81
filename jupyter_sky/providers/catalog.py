"""All providers, by the name that the registry and a person call them."""

from __future__ import annotations

from collections.abc import Mapping

from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.machine import Provider
from jupyter_sky.providers.ssh import SSH


def providers() -> Mapping[str, Provider]:
    """Return the providers as they are without settings; they find machines from the registry."""
    return {"local": Local(), "ssh": SSH(), "aws": AWS()}
