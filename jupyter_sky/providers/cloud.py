"""What a provider implements beside `jupyter_sky.providers.base` if its machines cost money."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jupyter_sky.providers.base import Machine, Progress, Provider
from jupyter_sky.providers.spec import ClusterSpec


@runtime_checkable
class CloudProvider(Provider, Protocol):
    """A provider whose machines are rented: they cost money until they are freed.

    Everything that it rents has to bear the id of its cluster and an id of this registry, so that
    `list_resources` finds it even if the kernel is killed at the worst moment.

    Attributes
    ----------
    cloud
        Who rents machines out, as a user reads it: ``"AWS"``.
    """

    cloud: str

    def location(self) -> str:
        """Return where machines are rented, as the registry keeps it and a user can read it."""

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """Give back all that a cluster has at a location, whether or not anything is there.

        Raises
        ------
        SkyError
            When something may still be there; the cluster stays in the registry then.
        """

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when machines have ended, in seconds since the epoch; ``None`` where one has not.

        It is asked about machines that do not answer: one that has ended costs nothing any more.

        Raises
        ------
        SkyError
            When it cannot be known.
        """

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return what clusters have at all locations that were ever used from this registry.

        Parameters
        ----------
        everywhere
            Whether to look where this registry never was, too.

        Returns
        -------
        list of CloudResources
            What there is, a row for each cluster.
        list of str
            Which location could not be looked at, and why, a sentence each.
        """

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """Give back instances of a cluster that is up, of which it does not know.

        Raises
        ------
        SkyError
            When one may still be there.
        """

    async def remove_unused(self) -> list[str]:
        """Remove what belongs to no cluster any more, and list what is kept and costs money.

        Returns
        -------
        list of str
            What was removed and what was kept, a sentence each.
        """


@runtime_checkable
class Queueing(CloudProvider, Protocol):
    """A provider whose nodes are waited for in a queue: for hours, and also without a notebook.

    Its `launch` goes on with what another kernel has begun for a cluster of the same id, if that
    is what is wanted now, and lets go of it if not.
    """

    async def is_queued(self, identity: str) -> bool:
        """Return whether nodes of a cluster are waited for, or wait for its notebook.

        Raises
        ------
        SkyError
            When it cannot be known.
        """


@runtime_checkable
class Forgettable(CloudProvider, Protocol):
    """A provider whose machines end by themselves, so that those may be forgotten that it hides."""

    def left_behind(self, name: str, machines: Sequence[Machine], location: str | None) -> str:
        """Return what may be left of a cluster that is forgotten, and how it is ended, in words."""


@runtime_checkable
class Stoppable(CloudProvider, Protocol):
    """A provider whose machines can be stopped: they cost nothing then but for their disks."""

    def check_stop(self, machines: Sequence[Machine]) -> None:
        """Refuse machines that cannot be stopped, before anything is done to them.

        Raises
        ------
        UsageError
            Why they cannot, and what to do instead.
        """

    async def storage_price(self, machines: Sequence[Machine]) -> float | None:
        """Return the dollars an hour of the machines' disks; ``None`` if that is not known."""

    async def money_left(self, machines: Sequence[Machine]) -> float | None:
        """Return the dollars after which running machines end by themselves; ``None``: never.

        Raises
        ------
        SkyError
            When a machine does not say it.
        """

    async def stop_machines(self, machines: Sequence[Machine]) -> None:
        """Stop machines: they cost nothing any more when this returns, but for their disks.

        From the first change on, a machine that powers off by itself keeps its disk.

        Raises
        ------
        SkyError
            When one may run on.
        """

    async def start_machines(
        self,
        spec: ClusterSpec,
        identity: str,
        machines: Sequence[Machine],
        preload: Sequence[str],
        progress: Progress,
        money: float | None = None,
    ) -> list[Machine]:
        """Start machines that were stopped, and an agent on each, as `launch` does for new ones.

        It starts all of them or none: before it raises, also when it is cancelled, it stops what
        it has started. Machines that run already are taken as they are.

        Parameters
        ----------
        money
            Dollars that they may cost from now on, before they end by themselves.

        Returns
        -------
        list of Machine
            The same machines, where they are reached now.
        """

    async def stopped_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when machines were stopped, in seconds since the epoch; ``None`` for others.

        Raises
        ------
        SkyError
            When it cannot be known.
        """


@runtime_checkable
class Planned(Protocol):
    """A provider that can say what starting a cluster would make and cost."""

    def plan(self, spec: ClusterSpec) -> str:
        """Return that, as lines; services are asked, and nothing is changed there."""


@dataclass(frozen=True)
class CloudResources:
    """What a cluster has at a cloud provider.

    Attributes
    ----------
    id, name, location
        The cluster, and where it is.
    what
        What there is, in words: ``"4 instances, 4 disks"``.
    is_ours
        Whether it was started from this registry; others may use the same account.
    started_by
        User and computer that started it.
    instances
        The ids of its instances, as rows of their machines have them.
    is_abandoned
        Whether the user started it elsewhere, and what is left cannot be a cluster any more.
    """

    id: str
    name: str
    location: str
    what: str
    is_ours: bool
    started_by: str
    instances: tuple[str, ...] = ()
    is_abandoned: bool = False
