"""Lost clusters that are started again: by cells with ``--retry``, and by ``%sky restart``."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry, row_updates
from jupyter_sky.cluster.state import ClusterPhase
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_list
from jupyter_sky.notebook import places
from jupyter_sky.notebook.options.lines import as_line
from jupyter_sky.notebook.session import Session


def restart_lost(session: Session) -> Cluster | None:
    """Start the current cluster anew if it is lost, or has a node that nobody reaches."""
    name = session.current_name
    known = session.connected(name)
    if not known or not ((away := known.unreached) or known.state.phase is ClusterPhase.LOST):
        return None
    if known.state.phase is not ClusterPhase.LOST:
        print(f"{name}: nobody reaches {format_list(away)}: a new cluster takes its place")
        options = session.started[name]
        print(session.down(name))
        session.started[name] = options
        session.make_current(name)
    cluster, _ = session.find_or_start(name, [session.started[name]])
    session.additions.install_missing(cluster, session.started[name])
    return cluster


def start_again(session: Session, cluster: Cluster, lost: Collection[str]) -> Cluster:
    """Start a lost cluster again as it was; where that fails, without the nodes it has lost.

    Raises
    ------
    SkyError
        If it does not start, or what its cells need cannot be installed there.
    """
    name, row, before = cluster.name, registry.with_id(cluster.id), session.started[cluster.name]
    if again := session.find(name):  # which ends what is left of it
        session.additions.install_missing(again, before)
        return again  # another notebook has started it
    options = session.started[name]  # with what others have added to it
    rest = places.with_rest(options, cluster, row)
    try:
        cluster, is_new = session.find_or_start(name, [rest], cluster.price)
    except SkyError as error:
        hosts = session.settings.expand_groups(options.hosts)
        left = places.without_nodes(rest, hosts, cluster, lost)
        if left is None or isinstance(error, UsageError):
            raise
        said = str(error).rstrip(".")
        print(f"{name}: {said}. It goes on without {format_list(sorted(lost))}.")
        cluster, is_new = session.find_or_start(name, [left], cluster.price)
    if is_new:  # else it has the limit of the notebook that has started it
        asked = session.started[name] = replace(session.started[name], max_cost=options.max_cost)
        row_updates.record_limit(cluster.id, rest.max_cost)
        row_updates.record_line(cluster.id, as_line(asked))
    session.additions.install_missing(cluster, options)
    return cluster
