"""Additions to running clusters, which are also remembered for the next start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import row_updates
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.attached import take_up_additions
from jupyter_sky.notebook.cluster_factory import of_provider
from jupyter_sky.notebook.config import Sky
from jupyter_sky.notebook.errors import gone
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.options.local_paths import with_absolute_paths
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.project import install, plugins, volumes
from jupyter_sky.notebook.project.image import file_of, names_file, with_file, with_sources
from jupyter_sky.notebook.validation import (
    check_fit,
    first_that_fits,
    further_plugins,
    missing_packages,
)
from jupyter_sky.providers.packages import package_name, updated

_WAITING = "waiting for another notebook, which installs packages on it"


class Additions:
    """Adds packages, volumes and plugins to running clusters.

    Parameters
    ----------
    shell
        The shell of the notebook.
    settings
        The defaults of options.
    started
        The options with which each cluster would be started again, by name; kept up to date.
    """

    def __init__(
        self, shell: InteractiveShell, settings: Sky, started: dict[str, CellOptions]
    ) -> None:
        self._shell = shell
        self._settings = settings
        self._started = started

    def complete(self, cluster: Cluster, choices: Sequence[CellOptions]) -> None:
        """Add what a cluster lacks that has started, and what a cell asks for that waited for it.

        Raises
        ------
        SkyError
            As for `add`, or if it has ended meanwhile.
        """
        if not cluster.alive:
            raise SkyError(gone(cluster.name))
        self.install_missing(cluster, self._started[cluster.name])
        self.add(cluster, choices)

    def add(self, cluster: Cluster, choices: Sequence[CellOptions]) -> None:
        """Add what the options of a cell name and a running cluster lacks.

        Parameters
        ----------
        cluster
            The cluster.
        choices
            The options; the first that describe this cluster count.

        Raises
        ------
        UsageError
            If none describe it.
        SkyError
            If something cannot be added; the cluster then lacks it as before.
        """
        if choices[0].concerns_run_alone:
            return
        typed = self._fitting(cluster, choices)
        if more := further_plugins(cluster, typed, self._started[cluster.name]):
            self._add_plugins(cluster, more)
        self.install_missing(cluster, typed)
        self._remember_file(cluster, typed)
        self._add_volumes(cluster, typed)
        self._renew_variables(cluster, typed)

    def _fitting(self, cluster: Cluster, choices: Sequence[CellOptions]) -> CellOptions:
        """Return the first options that describe a cluster that is up; refuse them if none do."""
        started = self._started[cluster.name]

        def check(options: CellOptions) -> None:
            check_fit(cluster, options, self._settings.expand_groups(options.hosts), started)

        fitting = [of_provider(each, cluster.provider.name) for each in choices]
        return first_that_fits(fitting, check)

    def install_missing(self, cluster: Cluster, options: CellOptions) -> None:
        """Install those of the packages of options that a running cluster does not have."""
        if missing := missing_packages(cluster, options):
            self.install(cluster, missing, options)

    def install(self, cluster: Cluster, requirements: Sequence[str], typed: CellOptions) -> None:
        """Install packages on a running cluster, and remember them for its next start.

        Parameters
        ----------
        cluster
            The cluster.
        requirements
            The packages, in pip's syntax.
        typed
            The options with the packages and their indexes.

        Raises
        ------
        SkyError
            If they cannot be installed; the cluster is then as it was.
        """
        typed = with_absolute_paths(typed)
        line = NoticeLine(self._shell, cluster.name)
        with cluster.packages.turn(lambda: line.update(_WAITING)):
            # Another notebook may have added to it.
            before = take_up_additions(cluster, self._started[cluster.name])
            image, left_out = with_file(with_sources(cluster.spec.image, typed), typed)
            install.install(self._shell, cluster, requirements, image)
            for sentence in left_out:
                NoticeLine(self._shell, cluster.name).update(sentence)
            started = replace(
                before,
                pip=updated(_without_file(before.pip, typed), typed.pip),
                wheels=tuple(dict.fromkeys([*before.wheels, *typed.wheels])),
                index=tuple(dict.fromkeys([*before.index, *typed.index])),
                env=typed.env or before.env,
            )
            self._remember(cluster, started)

    def _remember_file(self, cluster: Cluster, typed: CellOptions) -> None:
        """Remember a file of packages for a cluster's next start; it has all of them already."""
        before = self._started[cluster.name]
        if names_file(typed) and typed.env != before.env:
            pip = _without_file(before.pip, typed)
            self._remember(cluster, replace(before, env=typed.env, pip=pip))

    def _add_volumes(self, cluster: Cluster, typed: CellOptions) -> None:
        """Make volumes on a running cluster, and remember them for its next start."""
        before = self._started[cluster.name]
        if more := tuple(each for each in typed.volumes if each not in before.volumes):
            volumes.add_volumes(self._shell, cluster, more, self._settings.volume_cache)
            self._remember(cluster, replace(before, volumes=(*before.volumes, *more)))

    def _renew_variables(self, cluster: Cluster, typed: CellOptions) -> None:
        """Give ranks new values of variables, like a token, and remember them for its next start.

        They come with the next cell.
        """
        before = self._started[cluster.name]
        known = dict(before.variable)
        if new := {name: value for name, value in typed.variable if known[name] != value}:
            cluster.variables.renew(new)
            self._remember(cluster, replace(before, variable=tuple((known | new).items())))

    def _add_plugins(self, cluster: Cluster, words: Sequence[str]) -> None:
        """Add plugins to a running cluster, and remember them for its next start."""
        before = self._started[cluster.name]
        has = before.plugin if before.plugin is not None else cluster.runtime_env.plugins
        plugins.add_plugins(self._shell, cluster, words)
        self._remember(cluster, replace(before, plugin=(*has, *words)))

    def _remember(self, cluster: Cluster, started: CellOptions) -> None:
        """Start a cluster with other options next time, also where another notebook does."""
        self._started[cluster.name] = started
        row_updates.record_line(cluster.id, as_line(started))
        cluster.news.tell()


def _without_file(requirements: Sequence[str], typed: CellOptions) -> tuple[str, ...]:
    """Return requirements without those of packages in a file that was named after them."""
    names = {package_name(each) for each in file_of(typed).packages}
    return tuple(each for each in requirements if package_name(each) not in names)
