"""``%sky push`` and ``%sky pull``: variables to the ranks, and back."""

from __future__ import annotations

from argparse import Namespace

from jupyter_sky.cluster.errors import RemoteError
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.errors import check_pulled
from jupyter_sky.notebook.output.progress import SendingLine
from jupyter_sky.notebook.results import bind, requested_names, select
from jupyter_sky.notebook.validation import check_names, choose_ranks


def push(context: CommandContext, options: Namespace) -> None:
    """Send variables to all ranks, also those that have not changed."""
    cluster, namespace = context.cluster(), context.shell.user_ns
    check_names(options.names, namespace, "%sky push", cluster)
    update = cluster.sync.update(
        options.names, namespace, cluster.all_ranks, force=True, limit=None
    )
    sending = SendingLine(context.shell, cluster.name, update.sizes)
    run = cluster.run(Task(cluster.all_ranks, code="", update=update))
    run.follow(sending=sending.update)
    run.values()


def pull(context: CommandContext, options: Namespace) -> None:
    """Bind the head's values of variables, or with ``--ranks`` a list of the ranks' values."""
    cluster = context.cluster()
    from_head = options.ranks in (None, "head")
    ranks = choose_ranks(cluster, options.ranks or "head", "--ranks")
    gathered = () if from_head else options.names
    requested = requested_names(ranks, options.names, gathered)
    # A sharded model is gathered by all ranks, also for the head.
    asked = cluster.all_ranks if from_head else ranks
    # An update of no names: it says what the ranks' values are newer than.
    update = cluster.sync.update((), context.shell.user_ns, asked)
    run = cluster.run(Task(asked, code="", values=requested, update=update))
    run.follow()
    try:
        values = run.values()
    except RemoteError as error:
        check_pulled(error, cluster)
        raise
    bind(context.shell, cluster, run, select(values, ranks, options.names, gathered))
