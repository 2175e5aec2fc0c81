"""``%sky where``, ``profile``, ``debug``, ``interrupt``, ``auto`` …; most are also buttons."""

from __future__ import annotations

import html
import sys
from argparse import Namespace
from collections.abc import Iterable, Sequence
from dataclasses import replace

from IPython.display import display

from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import owed_ends, row_updates
from jupyter_sky.cluster.network.pages import Page
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count, format_ranks
from jupyter_sky.notebook.cells.lost_clusters import restart_lost
from jupyter_sky.notebook.cluster_factory import asking_above, check_provider_options
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.ipython.post_mortem import last_error, look_at
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.options.ranks import choose_ranks
from jupyter_sky.notebook.profiling.show import show_profile
from jupyter_sky.notebook.project.volumes import write_back_before_leaving
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.ssh.connection.targets import parse

_STOPPED_WITHIN = 8.0
"""Seconds for which a visitor stays connected, so that the ranks hear of the interrupt."""


def where(context: CommandContext, options: Namespace) -> None:
    """Print what each rank is doing, and which of them the others wait for."""
    with context.visited_cluster(options.cluster) as cluster:
        print(where_ranks_are(cluster))


def profile(context: CommandContext, options: Namespace) -> None:
    """Profile ranks for some time, and show the result."""
    with context.visited_cluster(options.cluster) as cluster:
        ranks = choose_ranks(cluster, options.ranks, "%sky profile --ranks")
        show_profile(context.shell, cluster, options.seconds, ranks)


def debug(context: CommandContext, options: Namespace) -> None:
    """Debug the frames that a failed cell has left on ranks."""
    cluster, error = context.cluster(options.cluster), last_error()
    origin = error.origin if error else None
    ranks = choose_ranks(cluster, options.ranks or "head", "%sky debug")
    run = ""
    if error and origin and origin[0] == cluster.name and options.ranks is None:
        ranks, run = (error.rank,), origin[1]
    look_at(context.shell, context.session.panels, cluster, run, ranks, len(ranks) > 1)


def forward(context: CommandContext, options: Namespace) -> None:
    """Show a link to a page that a node serves."""
    cluster = context.cluster(options.cluster)
    ranks = choose_ranks(cluster, options.ranks or "head", "%sky forward")
    if len(ranks) > 1:
        raise UsageError(
            f"a page has one node: name one rank, as in `%sky forward {options.port} --rank 2`."
        )
    name, label = f"port-{options.port}-{ranks[0]}", f"Port {options.port} of rank {ranks[0]}"
    if options.off:
        cluster.pages.hide(name)
        print(f"{cluster.name}: {label.lower()} is not shown")
        return
    # On the node's loopback address: most servers for a single user listen nowhere else.
    cluster.pages.show(Page(name, label, ranks[0], "127.0.0.1", options.port))
    if not (link := cluster.pages.link(name)):
        cluster.pages.hide(name)
        raise UsageError(
            "pages of nodes are shown at the address of Jupyter's server, and this is none of its "
            "kernels: use `%sky forward` in JupyterLab or Notebook."
        )
    bundle = {
        "text/plain": f"{label}: {link}",
        "text/html": f'<a href="{html.escape(link)}" target="_blank" rel="noopener">{label}</a>',
    }
    display(bundle, raw=True)


def interrupt(context: CommandContext, options: Namespace) -> None:
    """Stop the runs, and print whether they have stopped."""
    with context.visited_cluster(options.cluster) as cluster:
        if options.run:
            print(interrupt_run(cluster, options.run))
        else:
            print(interrupt_runs(cluster, _STOPPED_WITHIN if options.cluster else 0.0))


def restart(context: CommandContext, options: Namespace) -> None:
    """Restart ranks; where all are meant, a lost cluster is started again."""
    if not options.cluster and options.ranks is None and restart_lost(context.session):
        return
    print(restart_ranks(context.cluster(options.cluster), options.ranks))


def scale(context: CommandContext, options: Namespace) -> None:
    """Add nodes to a cluster or remove some, and print its new size."""
    cluster, hosts = context.cluster(options.cluster), options.hosts or ()
    with ProgressLine(context.shell, cluster.name) as progress:
        scaled = scale_cluster(
            context.session,
            cluster,
            options.nodes,
            hosts,
            progress.update,
            options.discard,
            options.max_price,
            options.agreed,
        )
        progress.update(f"{scaled}, in {progress.seconds:.1f} s")


def where_ranks_are(cluster: Cluster) -> str:
    """Return lines about what each rank is doing, and which ranks wait for which."""
    return f"{cluster.name}: {cluster.where().text}"


def interrupt_runs(cluster: Cluster, within: float = 0.0) -> str:
    """Stop the runs, wait at most ``within`` seconds, and return a sentence about it."""
    stopped = cluster.interrupt()
    if not stopped:
        return f"{cluster.name}: nothing is running"
    if within and cluster.wait_until_idle(within):
        return f"{cluster.name}: stopped"
    if stopped == "others":
        whose = "the run of another notebook or program"
        return f"{cluster.name}: stopping {whose}; the one of this notebook that waits begins then"
    return f"{cluster.name}: stopping"


def interrupt_run(cluster: Cluster, run: str) -> str:
    """Stop one run, and return a sentence about it.

    Raises
    ------
    SkyError
        If no rank is busy with it, and this kernel does not know it either.
    """
    if run not in cluster.state.busy_runs and cluster.snapshot(run=run)["run"] is None:
        raise SkyError(
            f"{cluster.name}: that run is over, or waits in another notebook: stop it there."
        )
    cluster.interrupt_run(run)
    return f"{cluster.name}: stopping"


def restart_ranks(cluster: Cluster, chosen: str | Sequence[int] | None) -> str:
    """Restart ranks (None for all), and return a sentence about it."""
    ranks = choose_ranks(cluster, chosen, "%sky restart")
    cluster.restart(ranks)
    empty = "an empty namespace" if len(ranks) == 1 else "empty namespaces"
    return f"{cluster.name}: {format_ranks(ranks)} restarted with {empty}"


def scale_cluster(
    session: Session,
    cluster: Cluster,
    nodes: int | None,
    hosts: Sequence[str] = (),
    progress: Progress = lambda text: None,
    is_discarded: bool = False,
    max_price: float | None = None,
    agreed: float | None = None,
) -> str:
    """Add nodes to a cluster or remove some, and return a description of it.

    Parameters
    ----------
    session
        The clusters of the notebook.
    cluster
        The cluster to scale.
    nodes
        The new number of nodes; None adds one for each of ``hosts``.
    hosts
        Machines to use, besides those that the cluster was started with.
    progress
        Called with the present step.
    is_discarded
        Whether nodes may leave with what they could not write back to volumes.
    max_price
        Dollars an hour that all nodes may cost from now on; by default, as before.
    agreed
        Dollars an hour that the user has been told, and has agreed to.

    Raises
    ------
    UsageError
        If there cannot be that many nodes, what is said does not apply to them, or while something
        runs.
    SkyError
        If nodes do not start, or have files that are nowhere else; the cluster is then as it was.
    Interrupted
        If Ctrl-C was pressed; the cluster has either its old or its new size.
    """
    has = len(cluster.state.nodes)
    if hosts and cluster.provider.name != "ssh":
        raise UsageError(
            f"--hosts does not apply to {cluster.provider.name} nodes: leave it out, as in "
            f"`%sky scale {nodes or has + 1}`."
        )
    if max_price is not None:
        said = CellOptions(provider=cluster.provider.name, max_price=max_price)
        check_provider_options(said, said)
    if nodes is None and not hosts:
        raise UsageError(
            f"give the number of nodes that {cluster.name} should have, as in `%sky scale 8`; it "
            f"has {has} now."
        )
    options = session.started[cluster.name]
    if cluster.provider.name == "ssh":
        own = [f"{node.name}:{len(node.ranks)}" for node in cluster.state.nodes]
        named = _distinct_hosts(session, [*own, *hosts])
        nodes = nodes or len(named)
        options = _with_spare_hosts(session, options, named)
    assert nodes
    warnings, wanted = cluster.warnings, _with_limit(options, max_price, agreed)
    provider = asking_above(session.factory.provider(wanted), agreed or 0.0)
    try:
        if nodes < has:
            write_back_before_leaving(cluster, nodes, is_discarded, progress)
        untold = cluster.scale(nodes, provider, progress)
        options = wanted
    except KeyboardInterrupt:
        raise _interrupted(cluster, has) from None
    finally:
        options = replace(options, nodes=len(cluster.state.nodes))
        session.started[cluster.name] = options
    row_updates.record_line(cluster.id, as_line(options))
    for warning in cluster.warnings[len(warnings) :]:
        print(f"{cluster.name}: {warning}", file=sys.stderr)
    if untold:
        print(owed_ends.sentence(untold, cluster.spec.unattended))
    return describe(cluster)


def _with_limit(options: CellOptions, max_price: float | None, agreed: float | None) -> CellOptions:
    """Return options with a new limit of the price, if they had one or one is given."""
    if max_price is None and agreed is not None and options.max_price is not None:
        max_price = max(options.max_price, agreed)
    return options if max_price is None else replace(options, max_price=max_price)


def _with_spare_hosts(session: Session, options: CellOptions, named: Sequence[str]) -> CellOptions:
    """Return options with hosts to choose nodes from: first the named ones, then the known ones."""
    known = (*options.hosts, *(session.settings.hosts or ()))
    return replace(options, hosts=_distinct_hosts(session, [*named, *known]))


def _distinct_hosts(session: Session, hosts: Iterable[str]) -> tuple[str, ...]:
    found: dict[str, str] = {}
    for host in session.settings.expand_groups(hosts):
        found.setdefault(str(parse(host)[0]), host)
    return tuple(found.values())


def _interrupted(cluster: Cluster, before: int) -> Interrupted:
    nodes = len(cluster.state.nodes)
    as_before = ", as before" if nodes == before else " now"
    return Interrupted(
        f"the scaling of {cluster.name} was stopped: it has {format_count(nodes, 'node')}"
        f"{as_before}."
    )


def auto(context: CommandContext, options: Namespace) -> None:
    """Switch running all following cells on the cluster on or off, and print which."""
    if options.switch in ("on", "off"):
        context.auto.switch(options.switch == "on")
    if not context.auto.on:
        print("auto is off: only cells that begin with `%%sky` run on a cluster")
        return
    name = context.session.current_name
    print(
        f"auto is on: from now on cells run on {name}, except those that begin with `# local` or "
        f"with a cell magic, and those that have only lines with `%`, `!` or `?`; `%sky auto off` "
        f"turns it off"
    )
