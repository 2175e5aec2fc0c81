"""Installs packages on a running cluster, and says which ones ranks have already imported."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.formatting import format_count, format_list, format_ranks, without_secrets
from jupyter_sky.notebook.output.progress import NoticeLine
from jupyter_sky.providers.spec import Image
from jupyter_sky.serialization import blobs, imported_versions, pickling


def install(
    shell: InteractiveShell, cluster: Cluster, requirements: Sequence[str], image: Image
) -> None:
    """Install packages on all nodes of a cluster, and print the result.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    requirements
        The packages, in pip's syntax.
    image
        Names their indexes.

    Raises
    ------
    SkyError
        If they cannot be installed; the cluster is then as it was.
    Interrupted
        If Ctrl-C has stopped it; the cluster is then as it was.
    """
    asked = without_secrets(", ".join(requirements))
    with ProgressLine(shell, cluster.name) as line:
        line.update(f"installing {asked}")
        rebuilt = cluster.packages.changed(map(Path, image.wheels))
        try:
            installed = cluster.packages.add(requirements, image, line.update)
        except KeyboardInterrupt:
            raise Interrupted(
                f"the installation of {asked} was stopped; {cluster.name} is as it was."
            ) from None
        nodes = format_count(len(cluster.state.nodes), "node")
        if installed:
            names = format_list([each.replace("==", " ") for each in installed])
            line.update(f"installed {names} on {nodes} in {line.seconds:.1f} s{_whose(cluster)}")
        else:
            line.update(f"{nodes} had {asked} already")
    if sentence := _outdated(cluster, installed, rebuilt):
        NoticeLine(shell, cluster.name).update(sentence)


def _whose(cluster: Cluster) -> str:
    """Add a note if nodes share the notebook's environment."""
    return ", for this cluster alone" if cluster.sync.shares_files else ""


def _outdated(cluster: Cluster, installed: Sequence[str], rebuilt: frozenset[str]) -> str:
    """Return a sentence about packages that ranks have imported as they were before."""
    if not installed or cluster.state.busy_runs:
        return ""
    pairs = [(name, version) for name, _, version in (each.partition("==") for each in installed)]
    call, parts = blobs.pack(
        pickling.dump(partial(imported_versions.outdated, pairs, rebuilt), "a question")
    )
    run = cluster.run(Task(cluster.all_ranks, call=call, blobs=parts, show=()))
    run.follow()
    ranks: dict[tuple[str, str, bool], list[int]] = {}
    for rank, found in run.values().items():
        for name, version, is_preloaded in found:
            ranks.setdefault((name, version, is_preloaded), []).append(rank)
    if not ranks:
        return ""
    kept = [
        f"{format_ranks(there)} {'keeps' if len(there) == 1 else 'keep'} {name} {version}"
        for (name, version, _), there in ranks.items()
    ]
    changes = "`%sky restart` gives them new processes"
    if any(is_preloaded for _, _, is_preloaded in ranks):
        changes = f"`%sky down {cluster.name}` lets the next cell start it again"
    return f"{format_list(kept)}, as imported before: {changes}, whose variables begin empty."
