"""What a cluster starts with, besides its nodes: the environment of its runs, and time limits."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from jupyter_sky.cluster.cost_meter import CostMeter
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.blobs.packed import Packed

T = TypeVar("T")


class ClientHooks(Protocol):
    """The hooks of plugins in the notebook; see `jupyter_sky.api.plugin_lifecycle`."""

    def enter(self, pool: Any, cluster: Any) -> None:
        """Called when the cluster is up; ``pool`` is ``None`` for one of ``%%sky`` cells."""

    def enter_further(self, plugins: Iterable[Any], cluster: Any) -> None:
        """Called with plugins that are added to a running cluster."""

    def add(self, context: AbstractContextManager[T]) -> T:
        """Enter another context, which is left before the cluster ends, and return its value."""

    def leave(self) -> None:
        """Called before it ends."""

    def given(self, plugin: str) -> Any:
        """Return the value that a plugin's hook yielded."""


@dataclass(frozen=True)
class RuntimeEnv:
    """The environment that ranks enter before their first run.

    Attributes
    ----------
    life
        A packed object with ``enter_process``, ``enter_app``, ``exit_app`` and ``exit_process``;
        ``None`` if no rank will enter it, as for a cluster that is only observed.
    blobs
        Its large parts, by digest.
    needs, needed_modules
        Names of the notebook that it uses, and the modules that its hooks are from.
    plugins
        Names of the plugins.
    preload
        Frameworks that each node imports once, before ranks are forked.
    modules
        Further modules to import then, for ``life``.
    together
        Whether ranks form a process group, so that one of them alone cannot go on.
    connects
        The library by which they are connected in it, like ``"torch"``; ``None`` for none.
    reforms
        Whether a process can form another group after it has left one; if not, all ranks are
        restarted for that.
    client
        The hooks of plugins in the notebook; ``None`` if no runs are started from here.
    added
        Requirements installed since the cluster's start, which new nodes get, too.
    renew_at
        When nodes need new credentials for their volumes, in seconds since the epoch; ``None`` for
        never.
    """

    life: Packed | None
    blobs: Mapping[str, memoryview] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    needed_modules: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    together: bool = False
    connects: str | None = None
    reforms: bool = True
    client: ClientHooks | None = None
    added: tuple[str, ...] = ()
    renew_at: float | None = None

    @property
    def imports(self) -> tuple[str, ...]:
        """All modules that each node imports once, frameworks first."""
        return (*self.preload, *self.modules)


@dataclass(frozen=True)
class Timeouts:
    """How long things may take, in seconds.

    Attributes
    ----------
    start
        From the launch of machines until their ranks are ready.
    form
        For all ranks to enter a process group.
    stop
        From Stop until a rank that still runs is killed.
    """

    start: float = 120.0
    form: float = 60.0
    stop: float = 5.0


@contextlib.asynccontextmanager
async def deadline(seconds: float, trouble: str) -> AsyncIterator[None]:
    """Cancel the block after that many seconds.

    Raises
    ------
    SkyError
        With ``trouble``, which says what was not done, and the seconds.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise SkyError(f"{trouble} within {seconds:.0f} s.") from None


@dataclass(frozen=True)
class ClusterConfig:
    """What a controller has to know about its cluster from the beginning.

    Attributes
    ----------
    spec
        The user's specification.
    id
        An id that no other cluster has, now or later.
    provider
        Where its nodes come from.
    runtime_env
        The environment that its ranks enter before their first run.
    timeouts
        How long things may take.
    visits
        Whether this process only visits: it does not keep the cluster up, and leaves the ranks'
        group alone.
    place
        Where its machines are rented, if they are.
    meter
        Its cost up to the last change of its rate.
    """

    spec: ClusterSpec
    id: str
    provider: Provider
    runtime_env: RuntimeEnv
    timeouts: Timeouts
    visits: bool = False
    place: str | None = None
    meter: CostMeter = field(default_factory=lambda: CostMeter(0.0, time.time()))
