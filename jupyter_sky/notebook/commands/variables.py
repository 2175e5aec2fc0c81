"""``%sky push``, ``pull``, ``vars``, ``same`` and ``metrics``: the ranks' variables and metrics."""

from __future__ import annotations

import sys
from argparse import Namespace
from collections.abc import Callable
from itertools import zip_longest
from typing import Any

from IPython.display import display

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.cells.results import bind, check_bound_once, requested_names, select
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.errors import check_names, check_pulled
from jupyter_sky.notebook.options.ranks import choose_ranks
from jupyter_sky.notebook.output.name_table import NameTable
from jupyter_sky.notebook.output.progress import NoticeLine, SendingLine


def push(context: CommandContext, options: Namespace) -> None:
    """Send variables to all ranks, even unchanged ones."""
    cluster, namespace = context.cluster(options.cluster), context.shell.user_ns
    check_names(options.names, namespace, "%sky push", cluster)
    update = cluster.sync.update(
        options.names, namespace, cluster.all_ranks, force=True, limit=None
    )
    with SendingLine(context.shell, cluster.name, update.sizes) as sending:
        run = cluster.run(Task(cluster.all_ranks, code="", update=update))
        _follow(context, cluster, run, sending.update)
        run.values()


def pull(context: CommandContext, options: Namespace) -> None:
    """Bind the head's values of variables or, with ``--ranks``, lists of the ranks' values."""
    check_bound_once({"%sky pull": options.names})
    cluster = context.cluster(options.cluster)
    from_head = options.ranks in (None, "head")
    ranks = choose_ranks(cluster, options.ranks or "head", "--ranks")
    gathered = () if from_head else options.names
    requested = requested_names(ranks, options.names, gathered)
    # All ranks help to gather a sharded model, even for the head only.
    asked = cluster.all_ranks if from_head else ranks
    # An update without names: it marks the state that the ranks' values are newer than.
    update = cluster.sync.update((), context.shell.user_ns, asked)
    task = Task(asked, code="", values=requested, gathered=gathered, update=update)
    run = cluster.run(task)
    _follow(context, cluster, run)
    try:
        values = run.values()
    except RemoteError as error:
        check_pulled(error, cluster)
        raise
    bound = select(values, ranks, options.names, gathered)
    bind(context.shell, cluster, run, bound, gathered)


def _follow(
    context: CommandContext,
    cluster: Cluster,
    run: RunHandle,
    sending: Callable[[TransferProgress], object] = lambda progress: None,
) -> None:
    """Wait for a run that shows nothing, and say what it waits for itself."""
    notice = NoticeLine(context.shell, cluster.name)

    def begun() -> None:
        if cluster.state.busy_runs - {run.id}:
            notice.update("waiting until the run that goes on is over; Stop ends the waiting alone")

    run.follow(begun=begun, sending=sending, notice=notice.update)


def vars_of_ranks(context: CommandContext, options: Namespace) -> bool:
    """Show the variables of the ranks; return whether all requested ones exist."""
    with context.visited_cluster(options.cluster) as cluster:
        names = cluster.looks.names(options.names or ())
    table = NameTable(names.rows, cluster.all_ranks)
    if names.rows:
        display(table)
    elif names.has_answer and not names.missing:
        print(f"{cluster.name}: the ranks have no variables yet")
    for note in names.notes:
        print(f"{cluster.name}: {note}")
    for name in names.missing:
        print(f"no rank has {name}{_push_instead(context, name, options.cluster)}", file=sys.stderr)
    return names.has_answer and not names.missing


def same(context: CommandContext, options: Namespace) -> bool:
    """Print whether names have the same values on all ranks, and return that."""
    if not options.names and not options.random:
        raise UsageError("name what to compare, as in `%sky same model optimizer`.")
    with context.visited_cluster(options.cluster) as cluster:
        compared = cluster.looks.same(options.names or (), options.random)
    # The states of random number generators come last, and have no name.
    for name, line in zip_longest(options.names or (), compared.lines, fillvalue=""):
        is_missing = name in compared.missing
        print(line + (_push_instead(context, name, options.cluster) if is_missing else ""))
    return not compared.differ


def _push_instead(context: CommandContext, name: str, cluster: str | None) -> str:
    """Say how to send a name that no rank has, if the notebook has it."""
    if name not in context.shell.user_ns:
        return ""
    where = f" --cluster {cluster}" if cluster else ""
    return f": `%sky push {name}{where}` sends the notebook's"


def metrics(context: CommandContext, options: Namespace) -> Any:
    """Return a table of the metrics of the last run that logged any."""
    cluster = context.cluster(options.cluster)
    curves = cluster.metrics()
    if not curves.has_any:
        print(
            f"{cluster.name}: nothing was logged yet; `sky.log(step=step, loss=loss)` in a cell "
            "does, after `import jupyter_sky as sky`"
        )
        return True
    if left_out := curves.left_out:
        print(
            f"{cluster.name}: of {left_out:,} further figures the table has the highest and the "
            "lowest of their neighbours"
        )
    return curves.frame()
