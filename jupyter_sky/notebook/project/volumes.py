"""Volumes of running clusters: made when a cell asks for them, written back after each run."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.api.environment.resolve import makes_environments
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.volumes import unattached
from jupyter_sky.formatting import format_count, format_list
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.notebook.project.install import install
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.buckets.volume import Volume, check_here, packages_for
from jupyter_sky.providers.cloud import CloudProvider

Unwritten = Literal["keep", "tell", "discard"]
"""What to do about files that rented machines alone have when they are to be given back: keep the
machines, tell the user and end them, or not even try to write the files back.
"""

_LONG = 1.0  # seconds for which it is not mentioned that files are being written back


def add_volumes(
    shell: InteractiveShell, cluster: Cluster, texts: Sequence[str], limit: float | None
) -> None:
    """Make volumes on all nodes of a running cluster.

    Raises
    ------
    SkyError
        If a node cannot make one; the cluster is then as it was.
    """
    volumes = [replace(Volume.parse(each), limit=limit) for each in texts]
    if makes_environments(cluster.provider):
        image = cluster.spec.image
        there = {*image.pip, *image.pins, *cluster.packages.added}
        if needed := [each for each in packages_for(volumes) if each not in there]:
            install(shell, cluster, needed, image)
    elif cluster.sync.shares_files:
        check_here(volumes)
    with ProgressLine(shell, cluster.name) as line:
        named = format_list([f"{each.url} at {each.path}" for each in volumes])
        line.update(f"preparing {named}")
        known = cluster.warnings
        cluster.mounts.add(volumes)
        nodes = format_count(len(cluster.state.nodes), "node")
        line.update(f"{named} on {nodes}, in {line.seconds:.1f} s")
    for warning in cluster.warnings[len(known) :]:
        print(f"{cluster.name}: {warning}", file=sys.stderr)


def write_back(shell: InteractiveShell, cluster: Cluster, keeps: bool = False) -> None:
    """Write back what ranks have written to volumes, and report the result.

    Parameters
    ----------
    keeps
        Whether to refuse as `write_back_or_refuse` does.

    Raises
    ------
    Interrupted
        If the user does not wait for it.
    """
    if not cluster.mounts.volumes:
        return
    shown = _WriteBackProgress(NoticeLine(shell, cluster.name).update, cluster)
    try:
        written, troubles = cluster.mounts.write_back(tick=shown.tick)
    except KeyboardInterrupt:
        raise Interrupted(f"the cell was stopped. {still_written(cluster)}".rstrip()) from None
    lost = cluster.mounts.lost()
    shown.end(written, is_complete=not troubles and not lost)
    if keeps:
        _refuse_to_lose(cluster, troubles)
    say_troubles(cluster.name, [*troubles, *lost])


class _WriteBackProgress:
    """Says where files are being written back to, if it takes long, and what was written.

    Parameters
    ----------
    show
        Called with a text that replaces the former one.
    cluster
        The cluster.
    """

    def __init__(self, show: Progress, cluster: Cluster) -> None:
        self._shown_by, self._begun, self._is_shown = show, time.monotonic(), False
        self._places = _written_to(cluster)

    def tick(self) -> None:
        """Show that it goes on; called twice a second."""
        if self._places and time.monotonic() - self._begun > _LONG:
            self._show(f"writing back to {self._places}")

    def end(self, written: Sequence[str], is_complete: bool) -> None:
        """Show what was written."""
        if written:
            self._show("; ".join(written))
        elif self._is_shown:  # what was written meanwhile, others were told
            amount = "everything" if is_complete else "not everything"
            self._show(f"{amount} is written back to {self._places}")

    def _show(self, text: str) -> None:
        self._is_shown = True
        with contextlib.suppress(OSError):  # as in `say_troubles`
            self._shown_by(text)


def still_written(cluster: Cluster) -> str:
    """Say where files may still go that nobody waits for; empty if none are written back."""
    if not (places := _written_to(cluster)):
        return ""
    return (
        f"Files of ranks may still be on their way to {places}: the next cell or "
        f"`%sky down {cluster.name}` waits for them."
    )


def _written_to(cluster: Cluster) -> str:
    return format_list([each.url for each in cluster.mounts.volumes if not each.read_only])


def say_troubles(name: str, troubles: Sequence[str]) -> None:
    """Say what could not be written back of a cluster."""
    with contextlib.suppress(OSError):  # a closed terminal keeps no machine from being ended
        for trouble in troubles:
            print(f"{name}: {trouble}", file=sys.stderr)


def write_back_or_refuse(cluster: Cluster, progress: Progress = lambda text: None) -> None:
    """Write back files of volumes that rented machines alone have, before these are released.

    Raises
    ------
    NotWrittenBack
        If they cannot be written back.
    """
    if cluster.mounts.volumes and isinstance(cluster.provider, CloudProvider):
        shown = _WriteBackProgress(progress, cluster)
        written, troubles = cluster.mounts.write_back(tick=shown.tick)
        shown.end(written, is_complete=not troubles)
        _refuse_to_lose(cluster, troubles)


def _refuse_to_lose(cluster: Cluster, troubles: Sequence[str]) -> None:
    # Only one that is not lost can be used.
    once_more = "`%sky get` brings files here" if cluster.alive else "`%sky down` tries again"
    advice = f"{once_more}, and `%sky down --discard` ends the cluster without them"
    unattached.refuse(cluster.provider, cluster.name, troubles, advice)


def write_back_before_leaving(
    cluster: Cluster, nodes: int, is_discarded: bool, progress: Progress
) -> None:
    """Write back what ranks of the nodes that leave have written.

    Parameters
    ----------
    cluster
        The cluster.
    nodes
        How many nodes stay.
    is_discarded
        Whether to let them leave with files that they alone have.
    progress
        Called with what is being written back.

    Raises
    ------
    UsageError
        While something runs.
    NotWrittenBack
        If rented machines have such files.
    """
    if is_discarded:
        return
    shown = _WriteBackProgress(progress, cluster)
    written, troubles = cluster.mounts.write_back_leaving(nodes, shown.tick)
    shown.end(written, is_complete=not troubles)
    unattached.refuse(
        cluster.provider,
        f"{cluster.name} stays as it was",
        troubles,
        "`%sky get` brings files here, and "
        f"`%sky scale --discard {nodes} --cluster {cluster.name}` lets nodes leave with them",
    )
    for trouble in troubles:
        print(f"{cluster.name}: {trouble}", file=sys.stderr)


def write_back_before_end(shell: InteractiveShell, cluster: Cluster, unwritten: Unwritten) -> None:
    """Write back what ranks have written, before a cluster is ended.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    unwritten
        What to do about files that rented machines alone have.

    Raises
    ------
    NotWrittenBack
        If the machines are kept.
    Interrupted
        If the user does not wait for it.
    """
    if unwritten == "discard":
        return
    try:
        write_back(shell, cluster, keeps=unwritten == "keep")
    except KeyboardInterrupt:
        raise Interrupted(
            f"{cluster.name} is still up: `%sky down {cluster.name}` goes on with writing back "
            f"what is in its volumes, and `%sky down --discard {cluster.name}` ends it without."
        ) from None
