"""Pools: a cluster for the length of a ``with`` block."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar, cast, overload

from jupyter_sky.api import pools_up
from jupyter_sky.api.accelerators import as_accelerator
from jupyter_sky.api.calls.batches import Batches
from jupyter_sky.api.calls.futures import Futures
from jupyter_sky.api.calls.open_streams import OpenStreams
from jupyter_sky.api.calls.single_runs import SingleRuns
from jupyter_sky.api.calls.terminal import write
from jupyter_sky.api.calls.worker import Worker
from jupyter_sky.api.compute import ComputeFunction, PendingCompute, PendingGroup, computed, gather
from jupyter_sky.api.display.start import start_first
from jupyter_sky.api.display.wording import reword, rewords_errors, warn
from jupyter_sky.api.future import CallFuture
from jupyter_sky.api.plugin import Plugin, check_plugins
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control.signals import as_interrupt
from jupyter_sky.cluster.inventory import owed_ends
from jupyter_sky.cluster.runtime_env import ClientHooks
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.buckets.volume import Volume, check_volumes
from jupyter_sky.providers.choice import Candidate, Selection, Spec, check_places
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import Accelerator, ClusterSpec, Image

if TYPE_CHECKING:
    from distributed import Client

    from jupyter_sky.providers.base import Provider

P = ParamSpec("P")
R = TypeVar("R")
S = TypeVar("S")
T = TypeVar("T")


class ComputePool:
    """A cluster that is up inside a ``with`` block. Also named ``sky.Compute``.

    Parameters
    ----------
    *specs
        Several possible providers with their settings, instead of ``provider``. If one of them has
        no machines, the next is tried.
    selection
        Which of them to try first: the ``"cheapest"``, by current prices, or the ``"first"``.
    provider
        Where nodes come from; ``sky.Local()`` by default.
    nodes
        Number of nodes; by default one, or all hosts that the provider names.
    accelerator
        GPUs of each node: ``"A100"``, ``"L4:4"``, or ``sky.accelerators.A100(count=8)``.
    plugins
        Plugins that prepare frameworks: ``[sky.plugins.torch()]``.
    image
        What to install on the nodes.
    name
        Name of the cluster; a unique one by default.
    procs_per_node
        Ranks on each node; by default, one for each GPU.
    cpus, memory
        Processors and gigabytes of each node: ``"8"`` or, for at least that many, ``"8+"``.
    idle_timeout
        Seconds without a run, or with one that only waits for this program, after which the
        cluster ends itself.
    replace
        Whether to replace a lost node by another one.
    patience
        Seconds to wait for a node that cannot be reached.
    volumes
        Data in buckets at paths of each node: ``["s3://bucket/prefix:/data:ro"]``, or `Volume`.
    worker
        How each rank carries out the calls of ``gather``, ``&``, ``map`` and ``>``; by default, one
        at a time.

    Examples
    --------
    >>> with sky.ComputePool(nodes=4, plugins=[sky.plugins.torch()]) as pool:
    ...     results = train() @ pool

    Raises
    ------
    UsageError
        If an argument is invalid.
    SkyError
        If the cluster does not start; everything that was started for it has been removed then.
    """

    def __init__(
        self,
        *specs: Spec,
        selection: Selection = "cheapest",
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
        volumes: Sequence[Volume | str] = (),
        worker: Worker | None = None,
    ) -> None:
        check_places(provider, specs, selection)
        specs = tuple(
            dataclasses.replace(one, accelerator=as_accelerator(one.accelerator)) for one in specs
        )
        self.provider = specs[0].provider if specs else provider or cast("Provider", Local())
        self.plugins = check_plugins(plugins)
        default_nodes = 1 if specs else self.provider.default_nodes
        self.spec = ClusterSpec(
            name=name or f"pool-{uuid.uuid4().hex[:6]}",
            nodes=default_nodes if nodes is None else nodes,
            procs_per_node=procs_per_node,
            accelerator=as_accelerator(accelerator),
            cpus=cpus,
            memory=memory,
            image=image or Image(),
            idle_timeout=idle_timeout,
            replace=replace,
            patience=patience,
            volumes=check_volumes(volumes),
        )
        self._candidates = [each for spec in specs for each in spec.candidates(self.spec, nodes)]
        self._selection: Selection = selection
        self._cluster: Cluster | None = None
        self._process = os.getpid()  # which starts the cluster
        self._client: ClientHooks | None = None
        if not isinstance(worker, Worker | None):
            raise UsageError(f"worker={worker!r}: write worker=sky.Worker(concurrency=4).")
        self.worker = worker or Worker()
        self._single_runs: SingleRuns | None = None
        self._batches: Batches | None = None
        self._futures: Futures | None = None
        self._streams = OpenStreams()
        self._signals = contextlib.ExitStack()

    def __enter__(self) -> ComputePool:
        if self._cluster is not None:
            raise SkyError("this pool is already up.")
        self._signals.enter_context(as_interrupt(lambda: self._cluster is not None))
        try:  # nodes may cost money: whatever goes wrong from here on ends them
            place, self._cluster = start_first(
                Candidate(self.provider, self.spec), self._candidates, self._selection, self.plugins
            )
            self.provider, self.spec = place.provider, place.spec
            self._process = os.getpid()
            pools_up.begin(self._cluster)
            self._single_runs = SingleRuns(self._cluster, self.plugins, self._streams)
            self._batches = Batches(self._cluster, self.plugins, self.worker, write, self._streams)
            self._futures = Futures(self._batches)
            for sentence in self._cluster.warnings:
                warn(sentence, stacklevel=2)
            self._client = self._cluster.runtime_env.client
            if self._client:
                self._client.enter(self, self._cluster)
        except BaseException as error:
            self._end()
            reword(error)
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._process != os.getpid():
            return  # a forked process leaves the pool to the one that started it
        reword(error)
        try:
            if self._client:
                self._client.leave()
        finally:
            self._end()

    def _end(self) -> None:
        with self._signals:  # one that has come ends this process afterwards
            if self._futures:
                self._futures.close()
            cluster, self._cluster = self._cluster, None
            self._single_runs = self._batches = self._futures = None
            if cluster is None:
                return
            try:
                pools_up.end(cluster)
                for sentence in [*cluster.mounts.write_back()[1], *cluster.mounts.lost()]:
                    warn(f"{cluster.name}: {sentence}", stacklevel=3)
            finally:  # whatever becomes of that, as nodes may cost money
                if untold := cluster.down():
                    sentence = owed_ends.sentence(untold, cluster.spec.unattended)
                    warn(f"{cluster.name} was ended, but {sentence}", stacklevel=3)

    def __repr__(self) -> str:
        state = "up" if self._cluster else "not up: use it in a `with` block"
        return f"<ComputePool {self.spec.name}, {format_count(self.spec.nodes, 'node')}, {state}>"

    @property
    def cluster(self) -> Cluster:
        """The running cluster."""
        if self._cluster is None:
            raise SkyError(
                "this pool is not up: run the call inside `with sky.ComputePool(...) as pool:`."
            )
        if self._process != os.getpid():  # both would read from the same connections
            raise SkyError(
                "this pool belongs to the process that started it, which has forked this one: make "
                "the call there, in a thread if need be, or start another pool here."
            )
        return self._cluster

    def scale(self, nodes: int) -> None:
        """Change the number of nodes; remaining ranks keep their numbers and variables.

        Parameters
        ----------
        nodes
            The new number. To shrink, the last nodes leave; the head always stays.

        Raises
        ------
        UsageError
            If the cluster cannot have that many.
        SkyError
            If nodes do not start; the pool is then as it was before.
        """
        spec = replace(self.spec, nodes=nodes)
        with self._up(self.cluster) as cluster:
            known, unwritten = cluster.warnings, cluster.mounts.write_back_leaving(nodes)[1]
            cluster.scale(nodes)
        self.spec = spec
        for sentence in [*unwritten, *cluster.warnings[len(known) :]]:
            warn(sentence, stacklevel=2)

    def dask(self) -> Client:
        """Return a Dask client for this pool's nodes, from the plugin dask, joblib or sklearn.

        Raises
        ------
        UsageError
            If the pool has none of these plugins.
        """
        for name in ("dask", "joblib", "sklearn"):
            if self._client and (deployment := self._client.given(name)):
                client: Client = deployment.client
                return client
        raise UsageError(
            "Dask does not run on this pool: start it as "
            "`with sky.ComputePool(..., plugins=[sky.plugins.dask()]) as pool:`."
        )

    def broadcast(self, pending: PendingCompute[Any]) -> Any:
        """Run a call on every rank and return the results in rank order.

        Values of a generator arrive as they are yielded, each with its rank.
        """
        with self._up(self._single_runs) as runs:
            return runs.on_all(pending)

    def dispatch(self, pending: PendingCompute[R]) -> R:
        """Run a call on one rank, in turn, and return its result.

        Values of a generator arrive as they are yielded.
        """
        with self._up(self._single_runs) as runs:
            return runs.on_one(pending)

    def begin(self, pending: PendingCompute[R]) -> CallFuture[R]:
        """Run a call on a free rank, and return at once a future of its result."""
        self._streams.refuse_nested()
        with self._up(self._futures) as futures:
            return futures.submit(pending)

    def run_group(self, group: PendingGroup[T]) -> T:
        """Run each call of a group on a free rank; return the results as the group specifies."""
        self._streams.refuse_nested()
        with self._up(self._batches) as batches:
            results: Any = batches.results(group.calls, ordered=group.ordered or not group.stream)
            return cast("T", results if group.stream else tuple(results))

    @overload
    def submit(
        self, function: ComputeFunction[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> CallFuture[R]: ...

    @overload
    def submit(
        self, function: Callable[P, R], /, *args: P.args, **kwargs: P.kwargs
    ) -> CallFuture[R]: ...

    def submit(
        self, function: ComputeFunction[..., Any] | Callable[..., Any], /, *args: Any, **kwargs: Any
    ) -> CallFuture[Any]:
        """Call a function on a free rank, as executors of `concurrent.futures` do.

        Parameters
        ----------
        function
            The function, with or without ``@sky.compute``.
        *args, **kwargs
            Its arguments.

        Returns
        -------
        CallFuture
            A future of its result, at once.

        Raises
        ------
        UsageError
            If it is not a function.
        """
        return self.begin(computed(function)(*args, **kwargs))

    @overload
    def map(
        self,
        function: ComputeFunction[..., R],
        *items: Iterable[Any],
        retries: int | None = ...,
        timeout: float | None = ...,
    ) -> list[R]: ...

    @overload
    def map(
        self,
        function: Callable[..., R],
        *items: Iterable[Any],
        retries: int | None = ...,
        timeout: float | None = ...,
    ) -> list[R]: ...

    def map(
        self,
        function: ComputeFunction[..., Any] | Callable[..., Any],
        *items: Iterable[Any],
        retries: int | None = None,
        timeout: float | None = None,
    ) -> list[Any]:
        """Call a function with each item, each time on a free rank.

        Parameters
        ----------
        function
            The function, with or without ``@sky.compute``.
        *items
            Iterables of arguments; with several, each call gets one item of each.
        retries, timeout
            As for `gather`.

        Returns
        -------
        list
            The results, in the order of the items.
        """
        begin = computed(function)
        calls = [begin(*arguments) for arguments in zip(*items, strict=False)]
        return list(self.run_group(gather(*calls, retries=retries, timeout=timeout)))

    @contextlib.contextmanager
    def _up(self, part: S | None) -> Iterator[S]:
        """Give what carries out calls, and have their errors say what can be done here."""
        with rewords_errors():
            self.cluster  # noqa: B018 - raises when the pool is not up
            assert part is not None
            yield part


Compute = ComputePool
