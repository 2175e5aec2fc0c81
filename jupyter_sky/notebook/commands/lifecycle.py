"""How a notebook gets a cluster (``%sky up``, ``%sky attach``), its Dask, and ends it."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.results import bind, select_requested
from jupyter_sky.notebook.session import describe

if TYPE_CHECKING:
    from distributed import Client


def up(context: CommandContext, options: CellOptions) -> None:
    """Start a cluster, unless it is up."""
    context.session.cluster(options)


def down(context: CommandContext, options: Namespace) -> None:
    """End a cluster."""
    session = context.session
    line = NoticeLine(context.shell, options.name or session.current_name)
    print(session.down(options.name, line.update))


def dask(context: CommandContext, options: Namespace) -> Client:
    """Return a client of Dask, which is started on the cluster if it does not run there yet."""
    from jupyter_sky.plugins.dask_cluster import deployment

    return deployment.client_of(context.cluster(options.cluster))


def attach(context: CommandContext, options: Namespace) -> None:
    """Make a cluster the current one, and follow the run that another kernel has left there."""
    cluster = context.session.find(options.name)
    if cluster is None:
        raise UsageError(f"there is no cluster {options.name or 'of this notebook'} to attach.")
    context.session.make_current(cluster)
    print(f"{cluster.name}: {describe(cluster)}; cells without --cluster use it now")
    if run := cluster.pop_unseen_run():
        _follow_unseen(context, cluster, run)


def _follow_unseen(context: CommandContext, cluster: Cluster, run: RunHandle) -> None:
    """Show what a run of another kernel has printed and prints, and bind its values."""
    print(f"{cluster.name}: `{run.task.title or 'a run'}` was started by an earlier kernel")
    is_safe = context.session.settings.display == "safe"
    follow(context.shell, context.session.panels, cluster, run, is_safe=is_safe)
    bind(context.shell, cluster, run, select_requested(run.values(), run.task))
