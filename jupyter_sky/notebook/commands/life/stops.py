"""``%sky stop`` and ``%sky start``: turn machines off and on again, keeping their disks."""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

from jupyter_sky.api.display.description import describe
from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.cluster.inventory.stops import DiskCost
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.stopping.start import start_stopped
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_dollars, format_duration, format_list, format_ranks
from jupyter_sky.notebook.attached import attached_options, attached_spec
from jupyter_sky.notebook.commands.context import CommandContext
from jupyter_sky.notebook.errors import no_cluster
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.project.volumes import write_back_or_refuse
from jupyter_sky.notebook.session import Session
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.event_loop import CleanUpFailed

_HOURS_A_MONTH = 730


def stop(context: CommandContext, options: Namespace) -> None:
    """Print what stopping a cluster loses, stop it, and print what it costs from then on."""
    cluster = context.cluster(options.name)
    if options.dry_run:
        print(foresee_stop(cluster))
    else:
        line = NoticeLine(context.shell, cluster.name)
        print(stop_cluster(context.session, cluster, print, line.update))


def start(
    context: CommandContext,
    options: Namespace,
    check: Callable[[CellOptions], None] = lambda started: None,
) -> None:
    """Start a stopped cluster again.

    Parameters
    ----------
    check
        Called, before its machines are started, with the options with which it was started.
    """
    session = context.session
    name = options.name or session.current_name
    row = registry.find(name)
    if row is None:
        raise UsageError(no_cluster(options.name, "start"))
    if options.max_cost is not None and row.spec.get("autostop"):
        raise UsageError(
            f"{name} keeps its disks, as --autostop says, and --max-cost ends machines with them: "
            "leave out --max-cost."
        )
    if known := session.connected(name):
        if known.alive and not row.is_stopped:  # by another notebook, which is not noticed yet
            raise UsageError(f"{name} is up already: `%sky status` shows it.")
        session.drop(name)
        known.close()
    typed = session.started.get(name) or attached_options(row)
    agreed = {} if options.max_price is None else {"max_price": options.max_price}
    typed = replace(typed, provider=row.provider, **agreed)
    # Another notebook may have started it with another number of nodes since.
    check(replace(typed, nodes=row.spec["nodes"]))
    spec, runtime_env, missing = _as_before(row, dict(typed.variable))
    without = f" without {format_list(missing)}, as values are not kept" if missing else ""
    if missing:
        print(
            f"{name}: ranks start{without}: set them here before `%sky start` to have them there",
            file=sys.stderr,
        )
    provider, timeouts = session.factory.provider(typed), session.settings.timeouts()
    with ProgressLine(context.shell, name) as progress:
        try:
            cluster = start_stopped(
                row, spec, provider, runtime_env, progress.update, timeouts, options.max_cost
            )
        except CleanUpFailed as stop:
            raise Interrupted(f"{stop}") from None
        except KeyboardInterrupt:
            raise Interrupted(f"the start of {name} was ended; it stays stopped.") from None
        try:
            progress.update(f"{describe(cluster)}, ready in {progress.seconds:.1f} s{without}")
        finally:  # also where nobody reads it, or at Ctrl-C: who ends clusters has to know it
            session.connect(cluster, typed, is_new=True)
            session.make_current(cluster.name)
    row_updates.record_variables(cluster.id, spec.image.env)


def stop_cluster(
    session: Session,
    cluster: Cluster,
    say: Callable[[str], None],
    progress: Progress = lambda text: None,
) -> str:
    """Stop a cluster, and return a sentence about its cost from then on.

    Parameters
    ----------
    say
        Called with what will be lost, beforehand.
    progress
        Called with what is being written back before.

    Raises
    ------
    SkyError
        If it cannot be stopped; it is then as it was.
    """
    name, cost = cluster.name, cluster.power.check_stop()
    write_back_or_refuse(cluster, progress)
    say(_losses(cluster))
    cluster.power.stop(cost)
    session.panels.settle(cluster)
    session.drop(name)
    return f"{name}: stopped; {disks_cost(cost)}; `%sky start {name}` starts it again"


def foresee_stop(cluster: Cluster) -> str:
    """Return a sentence about what stopping a cluster would lose and cost, without stopping it.

    Raises
    ------
    SkyError
        If it cannot be stopped.
    """
    cost = cluster.power.check_stop()
    return f"{_losses(cluster)}; {disks_cost(cost)}; `%sky down {cluster.name}` ends them"


def _losses(cluster: Cluster) -> str:
    lost = format_ranks(cluster.all_ranks)
    return (
        f"{cluster.name}: stopping its machines loses variables of {lost} and keeps files on its "
        "disks"
    )


def disks_cost(cost: DiskCost) -> str:
    """Describe the cost of a stopped cluster's disks, and for how long a limit covers it."""
    if cost.price is None:
        uncounted = ", so --max-cost does not count them" if cost.left is not None else ""
        return f"what its disks cost is not known{uncounted}"
    month = format_dollars(_HOURS_A_MONTH * cost.price)
    words = f"its disks cost {format_dollars(cost.price)} an hour, {month} a month"
    if cost.left is None:
        return words
    if cost.left <= 0 or cost.seconds is None:
        return f"{words}, and --max-cost is spent: only `%sky down` ends them"
    return (
        f"{words}, which the {format_dollars(cost.left)} left of --max-cost pay for "
        f"{format_duration(cost.seconds)}: only `%sky down` ends them then"
    )


def _as_before(
    row: RegistryRow, typed: dict[str, str]
) -> tuple[ClusterSpec, RuntimeEnv, list[str]]:
    """Return the specification of a stopped cluster, whose variables' values were not kept.

    Values may be secret. Variables whose values are not known here are left out, and their names
    are returned.

    Parameters
    ----------
    typed
        The environment variables of its ranks whose values this notebook has.
    """
    spec, runtime_env = attached_spec(row)
    names = (row.spec.get("base") or {}).get("variables", ())
    values = {each: typed.get(each) or os.environ.get(each) for each in names}
    known = {name: value for name, value in values.items() if value}
    image = replace(spec.image, env={**spec.image.env, **known})
    recorded = registry.recorded_spec(row)
    recorded = replace(recorded, image=image, volumes=spec.volumes)
    return recorded, runtime_env, sorted(values.keys() - known)
