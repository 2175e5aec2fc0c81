"""Pools: a cluster for the length of a ``with`` block."""

from __future__ import annotations

import itertools
import sys
import uuid
import warnings
from collections.abc import Iterable
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, TypeVar, cast

from jupyter_sky.api import accelerators
from jupyter_sky.api.assemble import assemble
from jupyter_sky.api.plugin import Plugin, check_plugins, decorators_of
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import Accelerator, ClusterSpec, Image
from jupyter_sky.serialization import blobs, pickling
from jupyter_sky.transport.protocol.events import Display, Output

if TYPE_CHECKING:
    from jupyter_sky.api.compute import PendingCompute
    from jupyter_sky.providers.base import Provider

R = TypeVar("R")


class ComputePool:
    """A cluster that is up inside of a ``with`` block. Also named ``sky.Compute``.

    Parameters
    ----------
    provider
        Where nodes come from; ``sky.Local()`` if it is not given.
    nodes
        Number of nodes; one, or all hosts that the provider names, if it is not given.
    accelerator
        GPUs of each node: ``"A100"``, ``"L4:4"``, or ``sky.accelerators.A100(count=8)``.
    plugins
        Plugins that prepare frameworks: ``[sky.plugins.torch()]``.
    image
        What is installed on the nodes.
    name
        Name of the cluster; one that no other has if it is not given.
    procs_per_node
        Ranks on each node; one for each GPU if it is not given.
    cpus, memory
        Processors and gigabytes of each node: ``"8"`` or, for at least as many, ``"8+"``.
    idle_timeout
        Seconds without a run after which the cluster ends itself.
    replace
        Whether another node takes the place of one that is lost.
    patience
        Seconds for which a node is waited for that nobody reaches.

    Examples
    --------
    >>> with sky.ComputePool(nodes=4, plugins=[sky.plugins.torch()]) as pool:
    ...     results = train() @ pool

    Raises
    ------
    UsageError
        When an argument is not possible.
    SkyError
        When the cluster does not come up; all that was started for it has been removed then.
    """

    def __init__(
        self,
        *,
        provider: Provider | None = None,
        nodes: int | None = None,
        accelerator: Accelerator | str | None = None,
        plugins: Iterable[Plugin] = (),
        image: Image | None = None,
        name: str | None = None,
        procs_per_node: int | None = None,
        cpus: str | int | None = None,
        memory: str | float | None = None,
        idle_timeout: float | None = None,
        replace: bool = False,
        patience: float | None = None,
    ) -> None:
        if isinstance(provider, type) or not hasattr(provider or Local(), "launch"):
            raise UsageError(f"provider={provider!r} is no provider: write provider=sky.Local().")
        self.provider = provider or cast("Provider", Local())
        self.plugins = check_plugins(plugins)
        self.spec = ClusterSpec(
            name=name or f"pool-{uuid.uuid4().hex[:6]}",
            nodes=self.provider.default_nodes if nodes is None else nodes,
            procs_per_node=procs_per_node,
            accelerator=_accelerator(accelerator),
            cpus=cpus,
            memory=memory,
            image=image or Image(),
            idle_timeout=idle_timeout,
            replace=replace,
            patience=patience,
        )
        self._cluster: Cluster | None = None
        self._turns = itertools.count()

    def __enter__(self) -> ComputePool:
        if self._cluster is not None:
            raise SkyError("this pool is up already.")
        spec, runtime_env = assemble(self.spec, self.plugins)
        self._cluster = Cluster.start(spec, self.provider, runtime_env)
        for sentence in self._cluster.warnings:
            warnings.warn(sentence, stacklevel=2)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.down()

    def __repr__(self) -> str:
        state = "up" if self._cluster else "not up: use it in a `with` block"
        return f"<ComputePool {self.spec.name}, {self.spec.nodes} nodes, {state}>"

    @property
    def cluster(self) -> Cluster:
        """The running cluster."""
        if self._cluster is None:
            raise SkyError(
                "this pool is not up: run the call inside of `with sky.ComputePool(...) as pool:`."
            )
        return self._cluster

    def scale(self, nodes: int) -> None:
        """Change the number of nodes; ranks that stay keep their number and variables.

        Parameters
        ----------
        nodes
            The new number. The last nodes leave; the head stays.

        Raises
        ------
        UsageError
            When the cluster cannot have that many.
        SkyError
            When nodes do not come up; the pool is as it was before then.
        """
        spec = replace(self.spec, nodes=nodes)
        known = self.cluster.warnings
        self.cluster.scale(nodes)
        self.spec = spec
        for sentence in self.cluster.warnings[len(known) :]:
            warnings.warn(sentence, stacklevel=2)

    def broadcast(self, pending: PendingCompute[R]) -> list[R]:
        """Run a call on every rank and return the results in rank order."""
        results = self._run(pending, self.cluster.all_ranks)
        return [results[rank] for rank in sorted(results)]

    def dispatch(self, pending: PendingCompute[R]) -> R:
        """Run a call on one rank, the next one at each call, and return its result."""
        ranks = self.cluster.all_ranks
        rank = ranks[next(self._turns) % len(ranks)]
        return self._run(pending, (rank,))[rank]

    def _run(self, pending: PendingCompute[R], ranks: tuple[int, ...]) -> dict[int, R]:
        cluster = self.cluster
        call = pickling.dump(
            pending.call(decorators_of(self.plugins)), f"the call of {pending.function.__name__}"
        )
        packed, parts = blobs.pack(call)
        update = cluster.sync.update(call.needs, pickling.main_namespace(), ranks, limit=None)
        task = Task(
            ranks=ranks,
            call=packed,
            cells=call.cells,
            update=update,
            blobs=parts,
            show=ranks,
        )
        run = cluster.run(task)
        run.follow(_write)
        return cast("dict[int, R]", run.values())


def _accelerator(value: Accelerator | str | None) -> Accelerator | None:
    return accelerators.parse(value) if isinstance(value, str) else value


def _write(event: Output | Display) -> None:
    if not isinstance(event, Output):
        return
    stream = sys.stderr if event.stream == "stderr" else sys.stdout
    stream.write(event.data.decode(errors="replace"))
    stream.flush()


Compute = ComputePool
