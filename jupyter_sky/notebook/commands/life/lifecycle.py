"""``%sky up``, ``attach``, ``down`` and ``dask``."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from jupyter_sky.api.display.description import describe
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.inventory.machines import every_machine_of
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.loss import how_to_go_on
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.other_notebooks import said_of_origin
from jupyter_sky.cluster.volumes.unattached import NotWrittenBack
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.notebook.attached import visit
from jupyter_sky.notebook.cells.results import bind, select_requested
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.errors import no_cluster
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.places import usual_selection
from jupyter_sky.notebook.project.volumes import Unwritten
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers import providers
from jupyter_sky.providers.choice import in_order
from jupyter_sky.providers.cloud import Forgettable, Planned

if TYPE_CHECKING:
    from distributed import Client


def up(context: CommandContext, options: CellOptions) -> None:
    """Start a cluster, unless it is up; or only say what would be started."""
    if options.dry_run:
        print(_dry_run(context, options))
    else:
        known = context.session.connected(options.cluster)
        cluster = context.session.cluster(options)
        if cluster is known:
            print(f"{cluster.name}: {describe(cluster)}, up already")


def _dry_run(context: CommandContext, options: CellOptions) -> str:
    """Return what starting a cluster would do at each possible place, in order."""
    name, places = context.session.places(options)
    if registry.find(name) is not None:
        raise UsageError(f"{name} is up already: `%sky status` shows it.")
    ordered, notes = list(places), list[str]()
    if len(places) > 1:
        found, notes = in_order(places, options.selection or usual_selection(places))
        ordered = [place for place, _ in found]
    parts = []
    for place in ordered:
        with context.session.settings.explained([place.options]):
            warnings = place.provider.check(place.spec, place.runtime_env.preload)
        if isinstance(place.provider, Planned):
            said = place.provider.plan(place.spec)
        else:
            said = f"{format_count(place.spec.nodes, f'{place.name} node')}, which cost nothing"
        parts.append("\n".join([said, *warnings]))
    head = f"{name}: nothing was started; `%sky up` without --dry-run would start"
    return "\n\n".join(
        [f"{head}{' the first of these that it gets' * (len(parts) > 1)}:", *parts]
        + [f"not {each}" for each in notes]
    )


def down(context: CommandContext, options: Namespace) -> None:
    """End a cluster."""
    session = context.session
    name = options.name or session.current_name
    line = NoticeLine(context.shell, name)
    row = registry.find(name)
    if options.discard and row and row.is_elsewhere:
        registry.remove(row.id)
        print(f"{name}: forgotten; its nodes end by themselves if {row.elsewhere} is still there")
        return
    try:
        unwritten: Unwritten = "discard" if options.discard else "keep"
        print(session.down(options.name, line.update, unwritten))
    except NotWrittenBack:
        raise
    except SkyError as error:
        provider = providers().get(row.provider) if row else None
        if row is None or not isinstance(provider, Forgettable) or row.is_elsewhere:
            raise
        if not options.discard:
            raise SkyError(
                f"{str(error).rstrip('.')}: try again, or forget the cluster with "
                f"`%sky down --discard {name}`."
            ) from None
        print(f"{name}: forgotten; {_forget(session, row, provider)}")


def _forget(session: Session, row: RegistryRow, provider: Forgettable) -> str:
    """Forget a cluster whose provider does not answer, and return what may be left of it."""
    registry.remove(row.id)
    session.drop(row.name)
    session.started.pop(row.name, None)
    machines = every_machine_of(row, provider)
    return provider.left_behind(row.name, machines, row.spec.get("place"))


def dask(context: CommandContext, options: Namespace) -> Client:
    """Return a Dask client, starting Dask on the cluster if necessary."""
    from jupyter_sky.plugins.dask_cluster import deployment

    return deployment.client_of(context.cluster(options.cluster))


def attach(context: CommandContext, options: Namespace) -> None:
    """Make a cluster the current one, and follow the run that another kernel has there."""
    session = context.session
    known = session.connected(options.name)
    cluster = session.find(options.name)
    if cluster is None:
        raise UsageError(no_cluster(options.name, "attach"))
    session.make_current(cluster.name)
    # What it is was said just now where it has been connected.
    described = f"{describe(cluster)}; " if cluster is known else ""
    print(f"{cluster.name}: {described}cells without --cluster use it now")
    if run := cluster.pop_unseen_run():
        _follow_unseen(context, cluster, run)
    elif cluster.state.busy_runs:
        # The notebook was connected before that began, and has not kept what it printed.
        with visit(cluster.name) as visitor:
            run = visitor.pop_unseen_run()
            if run and cluster.snapshot(run=run.id)["run"] is None:  # not its own, in background
                _follow_unseen(context, visitor, run)


def _follow_unseen(context: CommandContext, cluster: Cluster, run: RunHandle) -> None:
    """Show all output of another kernel's run, and bind its values."""
    print(f"{cluster.name}: {said_of_origin(run.task.title, cluster.shared)}")
    follow(context.shell, context.session.panels, cluster, run)
    # Another notebook may be the one that began it, and go on with it itself.
    if (loss := run.loss) and not cluster.shared and (how := how_to_go_on(loss, run.task.attempt)):
        print(f"{cluster.name}: {how}")
    values = select_requested(run.values(), run.task)
    bind(context.shell, cluster, run, values, run.task.gathered)
