"""The context of commands: the notebook's shell and session, and the chosen cluster."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.attached import attached_hosts
from jupyter_sky.notebook.errors import NONE_RUNNING, no_cluster
from jupyter_sky.notebook.ipython.auto_cells import AutoCells
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.ssh.connection.targets import Target, parse


@dataclass(frozen=True)
class CommandContext:
    """The context that every command gets.

    Attributes
    ----------
    shell
        The shell of the notebook, or of the terminal.
    session
        Its clusters.
    auto
        Switches ``%sky auto`` on and off.
    """

    shell: InteractiveShell
    session: Session
    auto: AutoCells

    def cluster(self, name: str | None = None) -> Cluster:
        """Return a running cluster, connecting the session to it.

        Parameters
        ----------
        name
            The cluster; by default the current one.

        Raises
        ------
        UsageError
            If it is not running.
        """
        cluster = self.session.find(name)
        if cluster is None and (gone := name or self.session.current_name) in self.session.started:
            raise UsageError(
                f"{gone} is gone, with the variables of its ranks: `%sky up --cluster {gone}` "
                "starts it again as it was."
            )
        if cluster is None and (name or registry.rows()):
            raise UsageError(no_cluster(name))
        if cluster is None:
            raise UsageError(NONE_RUNNING)
        return cluster

    @contextlib.contextmanager
    def visited_cluster(self, name: str | None) -> Iterator[Cluster]:
        """Provide a cluster for a moment; a cluster that was named is disconnected afterwards."""
        if name is None:
            yield self.cluster()
            return
        with self.session.visit(name) as cluster:
            yield cluster

    def hosts(self, named: tuple[str, ...] | None) -> tuple[Target, ...]:
        """Return the named hosts, or else those of the settings or of the current cluster."""
        settings = self.session.settings
        hosts = named or settings.hosts or ()
        row = None if hosts else registry.find(self.session.current_name)
        # The addresses of stopped machines may be a stranger's by now.
        if row and not row.is_stopped:
            hosts = attached_hosts(row)
        return parse(settings.expand_groups(hosts))
