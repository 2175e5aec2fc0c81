"""``%sky scale``: how many nodes a cluster shall have, and where those that come are from."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.notebook.options.definitions import as_line
from jupyter_sky.notebook.session import Session, describe
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.ssh.connection.targets import parse


def scale(
    session: Session,
    cluster: Cluster,
    nodes: int | None,
    hosts: Sequence[str] = (),
    progress: Progress = lambda text: None,
) -> str:
    """Give a cluster more nodes, or fewer, and say what it is then.

    Parameters
    ----------
    session
        The clusters of the notebook.
    cluster
        The one that is meant.
    nodes
        How many it shall have; if nobody says, as many more as there are ``hosts``.
    hosts
        Machines to take, beside those that the cluster was started with.
    progress
        Told what is going on.

    Raises
    ------
    UsageError
        When there cannot be so many, or while something runs.
    SkyError
        When nodes do not come; the cluster is as it was then.
    Interrupted
        When Ctrl-C came; it is as it was, or as it shall be.
    """
    options = session.started[cluster.name]
    if hosts and cluster.provider.name != "ssh":
        raise UsageError(
            f"--hosts has no meaning for {cluster.provider.name} nodes: leave it out, as in "
            f"`%sky scale {nodes or len(cluster.state.nodes) + 1}`."
        )
    if nodes is None and not hosts:
        raise UsageError(
            f"say how many nodes {cluster.name} shall have, as in `%sky scale 8`; it has "
            f"{len(cluster.state.nodes)} now."
        )
    if cluster.provider.name == "ssh":
        own = [f"{node.name}:{len(node.ranks)}" for node in cluster.state.nodes]
        named = _different(session, [*own, *hosts])
        others = (*options.hosts, *(session.settings.hosts or ()))
        options = replace(options, hosts=_different(session, [*named, *others]))
        nodes = nodes or len(named)
    assert nodes
    before, known = len(cluster.state.nodes), cluster.warnings
    try:
        left = cluster.scale(nodes, session.provider(options), progress)
    except KeyboardInterrupt:
        has = len(cluster.state.nodes)
        as_before = ", as before" if has == before else " now"
        raise Interrupted(
            f"the scaling of {cluster.name} was stopped: it has {format_count(has, 'node')}"
            f"{as_before}."
        ) from None
    finally:
        options = replace(options, nodes=len(cluster.state.nodes))
        session.started[cluster.name] = options
    registry.record_line(cluster.id, as_line(options))
    for warning in cluster.warnings[len(known) :]:
        print(f"{cluster.name}: {warning}", file=sys.stderr)
    if left:
        print(f"{', '.join(left)} could not be reached: what is left there ends by itself")
    return describe(cluster)


def _different(session: Session, hosts: Iterable[str]) -> tuple[str, ...]:
    """Return hosts, each of them once."""
    found: dict[str, str] = {}
    for host in session.settings.expand_groups(hosts):
        found.setdefault(str(parse(host)[0]), host)
    return tuple(found.values())
