"""The clusters of one notebook by name: which one a cell means, and how it starts and ends."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator, Sequence
from typing import Protocol

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import owed_ends, registry
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_dollars
from jupyter_sky.notebook import cluster_factory
from jupyter_sky.notebook.cluster_factory import ClusterFactory
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.kernel import cluster_name
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.output.progress import ProgressLine
from jupyter_sky.notebook.panel.manager import PanelManager
from jupyter_sky.notebook.places import start_at_one
from jupyter_sky.notebook.validation import check_fit
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.spec import UNATTENDED


class SessionObserver(Protocol):
    """What is called when clusters are connected and disconnected; in the user's thread."""

    def connected(self, cluster: Cluster, is_new: bool) -> None:
        """Take notice of a cluster; ``is_new`` says that nothing has run on it yet."""

    def ending(self, cluster: Cluster) -> None:
        """Take notice that a cluster is about to be ended."""

    def disconnected(self, cluster: Cluster) -> None:
        """Take notice that the session has dropped a cluster."""


class Session:
    """The clusters that a notebook is connected to.

    Parameters
    ----------
    shell
        The shell of the notebook.
    settings
        The defaults of options.
    observers
        Called when clusters come and go.

    Attributes
    ----------
    factory
        Makes providers and specs for the clusters.
    panels
        The panels of the clusters.
    started
        The options with which each cluster would be started anew, by its name.
    """

    def __init__(
        self, shell: InteractiveShell, settings: Sky, observers: Sequence[SessionObserver] = ()
    ) -> None:
        self._shell = shell
        self.settings = settings
        self.factory = ClusterFactory(settings)
        self.panels = PanelManager(shell, settings)
        self.started: dict[str, CellOptions] = {}
        self._observers = observers
        self._clusters: dict[str, Cluster] = {}
        self._current: str | None = None

    def cluster(self, options: CellOptions, *others: CellOptions) -> Cluster:
        """Return the cluster that a cell means; start it if it is not up.

        Parameters
        ----------
        options
            The options of the cell.
        *others
            Options that are as good, where a task file leaves the choice.

        Raises
        ------
        UsageError
            When the options do not fit the running cluster, or nothing says what to start.
        """
        name = options.cluster or self.current_name
        cluster = self.find(name)
        if cluster is None:
            wanted = [self._start_options(name, each) for each in (options, *others)]
            cluster = self._start(name, wanted)
        else:
            self._check_fit(cluster, [options, *others])
        self._current = name
        return cluster

    def find(self, name: str | None = None) -> Cluster | None:
        """Return a cluster that is up; attach it if this notebook is not connected to it.

        Parameters
        ----------
        name
            The cluster; by default the current one.
        """
        name = name or self.current_name
        known = self._clusters.get(name)
        if known is not None:
            if known.alive and not known.outdated:
                return known
            self._drop(name)
            known.close(SkyError(f"cluster {name} was changed by another kernel: run it again."))
            if known.state.phase == "lost":
                # Without all of its nodes no kernel can use it.
                known.down()
                return None
        return self._attach(name)

    @contextlib.contextmanager
    def visit(self, name: str) -> Iterator[Cluster]:
        """Give a cluster for a moment; one that is not connected is not connected afterwards.

        Raises
        ------
        UsageError
            When there is no such cluster.
        """
        known = self._clusters.get(name)
        if known is not None and known.alive:
            yield known
            return
        row = registry.find(name)
        cluster = None
        if row and row.machines:
            cluster = Cluster.visit(row, cluster_factory.attached_provider(row))
        if cluster is None:
            raise UsageError(no_cluster(name))
        try:
            yield cluster
        finally:
            cluster.close()

    def restart_lost(self) -> Cluster | None:
        """Start the current cluster anew if it, or a node that nobody reaches, was lost."""
        known = self._clusters.get(self.current_name)
        if known is None or not (known.state.phase is ClusterPhase.LOST or known.unreached):
            return None
        options = self.started[known.name]
        if known.state.phase is ClusterPhase.LOST:
            self.find(known.name)
        else:
            print(self.down(known.name))
            self.started[known.name] = options
        return self._start(known.name, [options])

    def connected(self, name: str | None = None) -> Cluster | None:
        """Return a cluster, by default the current one, if this notebook is connected to it."""
        return self._clusters.get(name or self.current_name)

    def connected_clusters(self) -> list[Cluster]:
        """Return the clusters that this notebook is connected to."""
        return list(self._clusters.values())

    @property
    def current_name(self) -> str:
        """The name of the cluster that a cell without ``--cluster`` means."""
        return self._current or cluster_name(self._shell)

    def make_current(self, cluster: Cluster) -> None:
        """Let cells without ``--cluster`` mean this cluster."""
        self._current = cluster.name

    def down(self, name: str | None = None, progress: Progress = lambda text: None) -> str:
        """End a cluster, and return a sentence about what is left of it.

        Parameters
        ----------
        name
            The cluster; by default the current one.
        progress
            Called with what is waited for, in words, if a node does not answer.

        Raises
        ------
        UsageError
            When there is no such cluster.
        """
        asked, name = name, name or self.current_name
        if broken := registry.find_broken(name):
            registry.remove(broken.id)
            return (
                f"{name}: removed from the registry, where its entry could not be read; check "
                f"whether any of its nodes is still running"
            )
        row = registry.find(name)
        if row is not None and name not in self._clusters and (hosts := row.hosts):
            progress(f"connecting to {', '.join(hosts)}")
        try:
            cluster = self._clusters.get(name) or self.find(name)
        except SkyError:
            if row is None or row.provider not in providers() or row.is_elsewhere:
                raise
            cluster = None
        unattended = UNATTENDED
        if cluster is not None:
            unattended = cluster.spec.unattended
            for observer in self._observers:
                observer.ending(cluster)
            untold = cluster.down(progress)
            self.panels.settle(cluster)
        elif row is not None:
            # It does not answer, or has just turned out to be gone.
            progress("removing what is left of it")
            untold = Cluster.remove(row, providers()[row.provider])
        else:
            raise UsageError(no_cluster(asked, "end"))
        self._drop(name)
        self.started.pop(name, None)
        if self._current == name:
            self._current = None
        if untold:
            return f"{name}: ended, but {owed_ends.sentence(untold, unattended)}"
        return f"{name}: ended; nothing is left running"

    def close(self) -> None:
        """Disconnect from all clusters; they stay up until their idle or grace time is over."""
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def _start_options(self, name: str, options: CellOptions) -> CellOptions:
        """Return the options to start a cluster with, for a cell with ``options``."""
        if name in self.started and not cluster_factory.describes_cluster(options):
            # It was lost, and comes back as it was. Where that costs money, the price is shown
            # before it starts.
            completed = self.started[name]
            cluster_factory.check_provider_options(options, completed)
            return completed
        return self.factory.complete(options)

    def _start(self, name: str, choices: Sequence[CellOptions]) -> Cluster:
        places = self.factory.places(name, choices)
        self.panels.prepare()
        timeouts = self.settings.timeouts()
        with ProgressLine(self._shell, name) as progress:
            try:
                place, cluster = start_at_one(
                    places, choices[0].selection, timeouts, progress.update
                )
            except KeyboardInterrupt:
                raise Interrupted(
                    f"the start of {name} was stopped; nothing is left running."
                ) from None
            progress.update(f"{describe(cluster)}, ready in {progress.seconds:.1f} s")
        registry.record_line(cluster.id, as_line(place.options))
        self._connect(cluster, place.options, is_new=True)
        return cluster

    def _check_fit(self, cluster: Cluster, choices: Sequence[CellOptions]) -> None:
        """Refuse options none of which describes a cluster that is up."""
        refused = []
        for each in choices:
            fitting = cluster_factory.of_provider(each, cluster.provider.name)
            try:
                hosts = self.settings.expand_groups(fitting.hosts)
                return check_fit(cluster, fitting, hosts, self.started[cluster.name])
            except UsageError as error:
                refused.append(error)
        raise refused[0]

    def _attach(self, name: str) -> Cluster | None:
        row = registry.find(name)
        if row is None or not row.machines:
            return None
        provider = cluster_factory.attached_provider(row)
        spec, runtime_env = cluster_factory.attached_spec(row)
        cluster = Cluster.attach(row, provider, runtime_env, self.settings.timeouts())
        if cluster is None:
            return None
        cluster.set_image(spec.image)
        with ProgressLine(self._shell, name) as progress:
            progress.update(f"{describe(cluster)}, still up: connected again")
        if name not in self.started:
            # What the ranks have of these names is of another kernel, so it is not up to date.
            cluster.sync.assigned(self._shell.user_ns, self._shell.user_ns)
        self._connect(cluster, cluster_factory.attached_options(row), is_new=False)
        return cluster

    def _connect(self, cluster: Cluster, options: CellOptions, is_new: bool) -> None:
        for warning in cluster.warnings:
            print(f"{cluster.name}: {warning}", file=sys.stderr)
        owed_ends.settle_in_background()
        self._clusters[cluster.name] = cluster
        self.started[cluster.name] = options
        for observer in self._observers:
            observer.connected(cluster, is_new)

    def _drop(self, name: str) -> None:
        cluster = self._clusters.pop(name, None)
        if cluster is not None:
            for observer in self._observers:
                observer.disconnected(cluster)


def describe(cluster: Cluster) -> str:
    """Return what a cluster is made of: ``"2 local nodes, 2 ranks on CPU"``."""
    nodes, ranks = len(cluster.state.nodes), len(cluster.all_ranks)
    gpus = sorted({node.gpu for node in cluster.state.nodes if node.gpu})
    versions = dict(cluster.state.versions)
    parts = [format_count(nodes, f"{cluster.provider.name} node")]
    parts.append(f"{format_count(ranks, 'rank')} on {', '.join(gpus) if gpus else 'CPU'}")
    if cluster.runtime_env.together and ranks > 1:
        framework = "jax" if "jax" in cluster.runtime_env.plugins else "torch"
        parts.append(f"group formed with {framework} {versions.get(framework, '')}".rstrip())
    if (price := cluster.price) is not None:
        parts.append(f"{format_dollars(price)} an hour")
    return ", ".join(parts)


def no_cluster(name: str | None, to: str = "") -> str:
    """Return the sentence that there is no such cluster, and which there are."""
    names = [row.name for row in registry.rows()]
    running = f"running are {', '.join(names)}" if names else "none is running"
    return f"there is no cluster {name or 'of this notebook'}{to and f' to {to}'}: {running}."
