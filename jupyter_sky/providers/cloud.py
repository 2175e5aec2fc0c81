"""What a provider implements besides `jupyter_sky.providers.base` if its machines cost money."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from jupyter_sky.providers.base import Machine, Progress, Provider
from jupyter_sky.providers.spec import ClusterSpec


@runtime_checkable
class CloudProvider(Provider, Protocol):
    """A provider whose machines are rented: they cost money until they are released.

    Everything that it rents must be tagged with the id of its cluster and an id of this registry,
    so that `list_resources` finds it even if the kernel is killed at the worst moment.

    Attributes
    ----------
    cloud
        The name of the cloud for users: ``"AWS"``.
    """

    cloud: str

    def location(self) -> str:
        """Return where machines are rented, as text for the registry and the user."""

    async def release_cluster(
        self, identity: str, location: str | None, progress: Progress
    ) -> None:
        """Release everything that a cluster has at a location, if anything is there.

        Raises
        ------
        SkyError
            If something may still be there; the cluster then stays in the registry.
        """

    async def ended_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when machines ended, in seconds since the epoch; ``None`` if one has not.

        If it is only known that one has, when that was is infinite. It is called for machines that
        do not answer: an ended machine no longer costs anything.

        Raises
        ------
        SkyError
            If that cannot be determined.
        """

    async def list_resources(
        self, everywhere: bool = False
    ) -> tuple[list[CloudResources], list[str]]:
        """Return the resources of clusters at all locations that were ever used from this registry.

        Parameters
        ----------
        everywhere
            Whether to include locations that this registry never used.

        Returns
        -------
        list of CloudResources
            The resources, one row per cluster.
        list of str
            Sentences about locations that could not be examined.
        """

    async def release_strays(self, identity: str, location: str, instances: Sequence[str]) -> None:
        """Release instances that a running cluster does not know.

        Raises
        ------
        SkyError
            If one may still be there.
        """

    async def remove_unused(self) -> list[str]:
        """Remove what no longer belongs to a cluster, and list what is kept and costs money.

        Returns
        -------
        list of str
            Sentences about what was removed and what was kept.
        """


@runtime_checkable
class Queueing(CloudProvider, Protocol):
    """A provider with a queue for nodes, in which jobs wait for hours, even without a notebook.

    Its `launch` continues what another kernel began for a cluster of the same id, if it still
    matches, and cancels it otherwise.

    Attributes
    ----------
    gives_any_nodes
        Whether nodes come from the queue, which gives others in place of lost ones.
    """

    @property
    def gives_any_nodes(self) -> bool: ...

    async def is_queued(self, identity: str) -> bool:
        """Return whether a cluster waits in the queue, or its nodes wait for the notebook.

        Raises
        ------
        SkyError
            If that cannot be determined.
        """


@runtime_checkable
class Forgettable(CloudProvider, Protocol):
    """A provider whose machines end by themselves, so that unreachable ones may be forgotten."""

    def left_behind(self, name: str, machines: Sequence[Machine], location: str | None) -> str:
        """Describe what may be left of a forgotten cluster, and how to end it."""


@runtime_checkable
class Stoppable(CloudProvider, Protocol):
    """A provider whose machines can be stopped, and then cost nothing except their disks."""

    def check_stop(self, machines: Sequence[Machine]) -> None:
        """Refuse machines that cannot be stopped, before anything is done to them.

        Raises
        ------
        UsageError
            If they cannot be stopped, with what to do instead.
        """

    async def storage_price(self, machines: Sequence[Machine]) -> float | None:
        """Return the dollars per hour of the machines' disks; ``None`` if that is not known."""

    async def money_left(self, machines: Sequence[Machine]) -> float | None:
        """Return the dollars after which running machines end by themselves; ``None`` for never.

        Raises
        ------
        SkyError
            If a machine does not tell.
        """

    async def stop_machines(self, machines: Sequence[Machine], autostop: bool) -> None:
        """Stop machines: when this returns, they cost nothing except their disks.

        From its first change on, a machine that powers off by itself keeps its disk.

        Parameters
        ----------
        autostop
            Whether it keeps its disk in any case, and does so if it is not stopped.

        Raises
        ------
        SkyError
            If one may still be running.
        """

    async def start_machines(
        self,
        spec: ClusterSpec,
        identity: str,
        machines: Sequence[Machine],
        preload: Sequence[str],
        progress: Progress,
        on_running: Callable[[], None],
        money: float | None = None,
    ) -> list[Machine]:
        """Start stopped machines, and an agent on each, like `launch` for new ones.

        It starts all of them or none: if it fails or is cancelled, it stops whatever it has
        started. Machines that are already running are used as they are.

        Parameters
        ----------
        on_running
            Called in any thread as soon as they cost what running machines do; it may block.
        money
            Dollars that they may cost from now on before they end by themselves.

        Returns
        -------
        list of Machine
            The same machines, with their new addresses.
        """

    async def stopped_at(self, machines: Sequence[Machine]) -> list[float | None]:
        """Return when machines were stopped, in seconds since the epoch; ``None`` for others.

        Raises
        ------
        SkyError
            If that cannot be determined.
        """


@runtime_checkable
class Planned(Protocol):
    """A provider that can say what starting a cluster would create and cost."""

    def plan(self, spec: ClusterSpec) -> str:
        """Return lines about that; this may ask services, but changes nothing there."""


@dataclass(frozen=True)
class CloudResources:
    """The resources of a cluster at a cloud provider.

    Attributes
    ----------
    id, name, location
        The cluster, and its location.
    what
        A description of the resources: ``"4 instances, 4 disks"``.
    is_ours
        Whether it was started from this registry; others may use the same account.
    started_by
        The user and the computer that started it.
    instances
        The ids of its instances, as in rows of their machines, without those that shut down.
    is_abandoned
        Whether the user started it elsewhere, and the rest can no longer be a cluster.
    """

    id: str
    name: str
    location: str
    what: str
    is_ours: bool
    started_by: str
    instances: tuple[str, ...] = ()
    is_abandoned: bool = False
