"""A cluster that is started, up to where its machines boot: in this process, or in one to kill."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from typing import Any

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.spec import ClusterSpec

SPEC = ClusterSpec("train", nodes=4, accelerator="A100")


class Booting(SkyError):
    """The machines are there and boot: as far as tests without machines get."""


def start(subnet: str, on_boot: Callable[[], object] = lambda: None, **options: Any) -> None:
    """Start a cluster of four nodes; fails with `Booting` when they are rented.

    Parameters
    ----------
    on_boot
        Called before.
    """

    def say(text: str) -> None:
        if text.endswith("to boot"):
            on_boot()
            raise Booting(text)

    Cluster.start(SPEC, provider(subnet, **options), RuntimeEnv({}), say)


def provider(subnet: str, **options: Any) -> AWS:
    """Return the provider that these tests use."""
    return AWS(subnet=subnet, addresses="private", max_price=100, user="root", **options)


def start_and_fail(subnet: str, variables: Mapping[str, str]) -> None:
    """Start a cluster in a process of its own, and give it back.

    Parameters
    ----------
    variables
        Those of the environment: who forks such processes may be there from an earlier test.
    """
    os.environ.clear()
    os.environ.update(variables)
    for number in (signal.SIGTERM, signal.SIGHUP):  # under `nohup` one would be passed over
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(SkyError):
        start(subnet)
