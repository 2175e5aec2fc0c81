"""Sends nodes new credentials for their volumes before the old ones expire, even during a run."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.volumes.mount import mount
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.sessions.mfa import without_questions
from jupyter_sky.providers.spec import ClusterSpec

_LOOK_EVERY = 60.0
_AGAIN_AFTER = 60.0
"""Seconds after which another attempt is made, where nodes or the cloud did not answer."""

_TOLD_AFTER = 2
"""Failures in a row after which the user is told: a laptop that wakes up has no network at first.
"""


class VolumesOwner(Protocol):
    """What volumes need from their cluster: its controller."""

    spec: ClusterSpec
    runtime_env: RuntimeEnv
    provider: Provider
    warnings: tuple[str, ...]
    untold: list[str]

    @property
    def connections(self) -> Sequence[Connection]:
        """The connections to its agents."""

    def warn(self, sentences: Iterable[str]) -> None:
        """Add warnings for the user."""

    def notify(self, text: str) -> None:
        """Tell the user where a run goes on."""


_tasks: WeakKeyDictionary[VolumesOwner, asyncio.Task[None]] = WeakKeyDictionary()


def begin(controller: VolumesOwner, at: float | None) -> None:
    """Renew the credentials of a cluster from now on; for the background thread.

    Parameters
    ----------
    controller
        The cluster.
    at
        When the first renewal is due, in seconds since the epoch; ``None`` for never.
    """
    controller.runtime_env = replace(controller.runtime_env, renew_at=at)
    former = _tasks.pop(controller, None)
    if former:
        former.cancel()
    if at is not None:
        _tasks[controller] = asyncio.get_running_loop().create_task(_renew(controller))


async def _renew(controller: VolumesOwner) -> None:
    failed = 0
    while _is_used(controller) and (at := controller.runtime_env.renew_at) is not None:
        if (left := at - time.time()) > 0:
            await asyncio.sleep(min(left, _LOOK_EVERY))
            continue
        # One that is lost is replaced, or the cluster is.
        there = [each for each in controller.connections if not each.is_over]
        try:
            with without_questions():  # nobody may be there
                at = await mount(
                    there,
                    controller.spec.volumes,
                    controller.provider,
                    partial(_tell, controller),
                )
        except Exception as error:  # of whatever asks the cloud: without it, nodes lose access
            failed += 1
            if failed == _TOLD_AFTER:
                _tell(controller, [f"the credentials of volumes cannot be renewed: {error}"])
            at = time.time() + _AGAIN_AFTER
        else:
            failed = 0
        controller.runtime_env = replace(controller.runtime_env, renew_at=at)


def _tell(controller: VolumesOwner, sentences: Iterable[str]) -> None:
    """Tell the user, who waits for no warnings now, in the cells that run and in the next one."""
    new = [each for each in sentences if each not in controller.warnings]
    controller.warn(new)
    controller.untold += new
    for each in new:
        controller.notify(each)


def _is_used(controller: VolumesOwner) -> bool:
    """Return whether this process still has a connection to the cluster, or is reconnecting."""
    return any(not each.is_over for each in controller.connections)
