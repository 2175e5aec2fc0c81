"""The clusters of one notebook by name: which one a cell means, and how it starts and ends."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster import stopped
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import cloud_resources, owed_ends, registry, row_updates
from jupyter_sky.cluster.inventory.machines import find_broken
from jupyter_sky.errors import NameTaken, SkyError, UsageError
from jupyter_sky.notebook import attached, places
from jupyter_sky.notebook.cells.cluster_start import ClusterStart, wait_for_starter
from jupyter_sky.notebook.client_plugins import SessionObserver
from jupyter_sky.notebook.cluster_factory import ClusterFactory, ClusterPlace
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import gone, no_cluster
from jupyter_sky.notebook.kernel import as_typed, cluster_name, has_running_loop
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.options.local_paths import with_absolute_paths
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.panel.manager import PanelManager
from jupyter_sky.notebook.project.additions import Additions
from jupyter_sky.notebook.project.image import imported_modules
from jupyter_sky.notebook.project.volumes import Unwritten, write_back, write_back_before_end
from jupyter_sky.providers import providers
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.cloud import Queueing


class Session:
    """The clusters that a notebook is connected to.

    Parameters
    ----------
    shell
        The shell of the notebook.
    settings
        The defaults of options.
    observers
        Called when clusters come and go; an attribute too.
    given
        Options that take the place of those that are typed.

    Attributes
    ----------
    factory
        Makes providers and specs for the clusters.
    panels
        The panels of the clusters.
    additions
        What clusters get while they are up.
    started
        The options with which each cluster would be started anew, by its name.
    """

    def __init__(
        self,
        shell: InteractiveShell,
        settings: Sky,
        observers: Sequence[SessionObserver] = (),
        given: Mapping[str, Any] | None = None,
    ) -> None:
        self._shell, self.settings = shell, settings
        self.factory = ClusterFactory(settings, partial(imported_modules, shell))
        self.panels = PanelManager(shell, settings)
        self.started: dict[str, CellOptions] = {}
        self.additions = Additions(shell, settings, self.started)
        self.observers = list(observers)
        self._given = given or {}
        self._clusters: dict[str, Cluster] = {}
        self._current: str | None = None
        self._starting: dict[str, ClusterStart] = {}
        self._found_gone: dict[str, CellOptions] = {}

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
        SkyError
            When it does not start, or lacks packages that cannot be installed.
        """
        choices = list(map(self.asked, (options, *others)))
        name = choices[0].cluster or self.current_name
        if start := self.starting(name):
            self.additions.install_missing(start.follow(self._shell), self.started[name])
        is_as_typed = False
        cluster = self.find(name)
        if cluster is None:
            is_another = not places.mean_former(self.factory, choices, self.started.get(name))
            typed = [self._start_options(name, each) for each in choices]
            cluster, is_new = self.find_or_start(name, typed)
            is_as_typed = is_new and is_another
            self._current = name
            self.additions.install_missing(cluster, self.started[name])
        if not is_as_typed:
            self.additions.add(cluster, choices)
        self._current = name
        return cluster

    def start_behind(self, options: CellOptions) -> ClusterStart | None:
        """Start a background run's cluster, and wait for nothing, if its nodes are queued for.

        Returns
        -------
        ClusterStart or None
            ``None`` if it is up, if its nodes come at once or not at all, or in the foreground.

        Raises
        ------
        UsageError
            When nothing says what to start.
        """
        # Without an event loop nobody would begin a run that waits for its cluster.
        if not options.background or not has_running_loop():
            return None
        options = self.asked(options)
        name = options.cluster or self.current_name
        if (there := self.starting(name)) or self.find(name):
            return there
        possible = self.factory.places(name, [self._start_options(name, options)])
        if len(possible) > 1 or not isinstance(possible[0].provider, Queueing):
            return None
        places.say_left_out(name, possible)
        self.panels.prepare()
        start = partial(places.start_at_one, possible, None, self.settings.timeouts())
        begun = self._starting[name] = ClusterStart(
            name, start, lambda one: self._take_up(*one) if one else self.cluster(options)
        )
        self._current = name
        return begun

    def starting(self, name: str | None = None) -> ClusterStart | None:
        """Return the start of a cluster, by default the current one, if it is under way."""
        start = self._starting.get(name or self.current_name)
        return start if start and not start.is_over else None

    def asked(self, options: CellOptions) -> CellOptions:
        """Return the options of a cell, with those that are given for all cells."""
        return with_absolute_paths(replace(options, **self._given) if self._given else options)

    def places(self, options: CellOptions) -> tuple[str, list[ClusterPlace]]:
        """Return the name of the cluster that options mean, and where it could come from."""
        options = self.asked(options)
        name = options.cluster or self.current_name
        return name, self.factory.places(name, [self._start_options(name, options)])

    def find(self, name: str | None = None) -> Cluster | None:
        """Return a cluster, by default the current one, if it is up; connect to it if need be."""
        if start := self.starting(name):
            return start.cluster_by_now()
        if known := self._clusters.get(name := name or self.current_name):
            if known.alive and not known.outdated:
                with known.news.taken() as has_news:
                    if has_news:
                        self.started[name] = attached.take_up_additions(known, self.started[name])
                return known
            if row := registry.with_id(known.id):
                self.started[name] = attached.with_additions(self.started[name], row)
            if known.state.phase == "lost":
                write_back(self._shell, known)
            self._leave(known)
            attached.end_lost(known)
        return self._attach(name)

    def find_or_start(
        self, name: str, choices: Sequence[CellOptions], former_price: float | None = None
    ) -> tuple[Cluster, bool]:
        """Start a cluster unless another notebook does.

        Parameters
        ----------
        name
            The cluster.
        choices
            Options to start it with, any of which will do.
        former_price
            Dollars an hour of the one that it takes the place of, if that is known.

        Returns
        -------
        tuple
            The cluster, and whether this notebook has started it.

        Raises
        ------
        SkyError
            If it does not start.
        """
        while (there := self.find(name)) is None:
            try:
                return self._start(name, choices, former_price), True
            except NameTaken:
                wait_for_starter(name, NoticeLine(self._shell, name).update)
        return there, False

    def visit(self, name: str) -> AbstractContextManager[Cluster]:
        """Give a cluster for a moment; one that is not connected is not connected afterwards.

        Raises
        ------
        UsageError
            When there is no such cluster.
        """
        start = self.starting(name)
        known = start.cluster_by_now() if start else self._clusters.get(name)
        return nullcontext(known) if known and known.alive else attached.visit(name)

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

    def make_current(self, name: str) -> None:
        """Let cells without ``--cluster`` mean the cluster of this name."""
        self._current = name

    def down(
        self,
        name: str | None = None,
        progress: Progress = lambda text: None,
        unwritten: Unwritten = "keep",
    ) -> str:
        """End a cluster, and return a sentence about what is left of it.

        Parameters
        ----------
        name
            The cluster; by default the current one.
        progress
            Called with what is waited for, in words, if a node does not answer.
        unwritten
            What to do about files of volumes that rented machines alone have.

        Raises
        ------
        UsageError
            When there is no such cluster.
        NotWrittenBack
            When its machines are kept.
        """
        asked, name = name, name or self.current_name
        if start := self.starting(name):
            start.cancel()
            if (stopped := start.future.exception()) is not None:
                return str(stopped)
            start.cluster()
        if broken := find_broken(name):
            return cloud_resources.end_unreadable(broken)
        row, known = registry.find(name), self._clusters.get(name)
        if row and known and known.id != row.id:
            self._leave(known)  # another notebook has ended it, and started one of its name
        if row and name not in self._clusters and (hosts := row.hosts):
            progress(f"connecting to {', '.join(hosts)}")
        try:
            cluster = self._clusters.get(name) or self._attach(name, unwritten == "discard")
        except SkyError as error:
            if row is None or row.provider not in providers() or row.is_elsewhere:
                raise
            attached.write_back_left(row, self.factory.provider, unwritten, error)
            cluster = None
        if cluster is not None:
            write_back_before_end(self._shell, cluster, unwritten)
            for observer in self.observers:
                observer.ending(cluster)
            untold = cluster.down(progress)
            self.panels.settle(cluster)
        elif row is not None:
            # It does not answer, or has just turned out to be gone.
            progress("removing what is left of it")
            untold = Cluster.remove(row, providers()[row.provider])
        else:
            raise UsageError(no_cluster(asked, "end"))
        self.drop(name)
        self.started.pop(name, None)
        if self._current == name:
            self._current = None
        return owed_ends.sentence_of_end(name, untold, cluster.spec.unattended if cluster else None)

    def close(self, trouble: Callable[[str], SkyError | None] = lambda name: None) -> None:
        """Leave all clusters, which stay up for their idle or grace time; runs get a trouble."""
        for cluster in self.connected_clusters():  # the sidebar's thread may end one meanwhile
            cluster.close(trouble(cluster.name))
        self._clusters.clear()

    def _start_options(self, name: str, options: CellOptions) -> CellOptions:
        """Return the options to start a cluster with, for a cell with ``options``."""
        former, ended = self.started.get(name), self._found_gone.get(name)
        return places.start_options(self.factory, options, former, ended)

    def _start(
        self, name: str, choices: Sequence[CellOptions], former_price: float | None = None
    ) -> Cluster:
        possible = self.factory.places(name, choices, former_price)
        places.say_left_out(name, possible)
        self.panels.prepare()
        selection, timeouts = choices[0].selection, self.settings.timeouts()
        with ProgressLine(self._shell, name) as progress:
            with self.settings.explained(choices), stopped.start_of(name):
                place, cluster = places.start_at_one(possible, selection, timeouts, progress.update)
            try:
                progress.update(f"{describe(cluster)}, ready in {progress.seconds:.1f} s")
            except BaseException:
                # Nobody reads it, or Ctrl-C: whoever ends clusters has to know it.
                self.connect(cluster, place.options, is_new=True)
                raise
        return self._take_up(place, cluster)

    def _take_up(self, place: ClusterPlace, cluster: Cluster) -> Cluster:
        """Make a cluster that was started one of the notebook's."""
        self._starting.pop(cluster.name, None)
        self.connect(cluster, place.options, is_new=True)  # first: it has to be known to be ended
        row_updates.record_line(cluster.id, as_line(place.options))
        return cluster

    def _attach(self, name: str, discards: bool = False) -> Cluster | None:
        row = registry.find(name)
        if row is None or not row.machines:
            return None
        timeouts, provider_of = self.settings.timeouts(), self.factory.provider
        cluster, options = attached.attach(row, timeouts, provider_of, discards)
        if cluster is None:
            self._found_gone[name] = options
            print(gone(name), file=sys.stderr)
            return None
        if name not in self.started:
            # What the ranks have of these names is of another kernel, so it is not up to date.
            cluster.sync.assigned(self._shell.user_ns, self._shell.user_ns)
        self.connect(cluster, options, is_new=False)
        return cluster

    def connect(self, cluster: Cluster, options: CellOptions, is_new: bool) -> None:
        """Take up a cluster that would be started with these options."""
        owed_ends.settle_in_background()
        self._clusters[cluster.name] = cluster
        self.started[cluster.name] = options
        self._found_gone.pop(cluster.name, None)
        for observer in self.observers:
            observer.connected(cluster, is_new)
        for warning in cluster.warnings:
            print(as_typed(f"{cluster.name}: {warning}"), file=sys.stderr)

    def _leave(self, cluster: Cluster) -> None:
        """Let go of a cluster that another kernel has changed."""
        self.drop(cluster.name)
        trouble = f"cluster {cluster.name} was changed by another kernel: run it again."
        cluster.close(SkyError(trouble))

    def drop(self, name: str) -> None:
        """Let go of a cluster, which ends or stays as it is."""
        if (cluster := self._clusters.pop(name, None)) is not None:
            for observer in self.observers:
                observer.disconnected(cluster)
