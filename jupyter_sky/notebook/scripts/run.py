"""Runs a script on the nodes of a cluster, in a cell or in the background."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import DisplayHandle

from jupyter_sky.analysis.cell_title import shell_title
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Attempt, Task
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count, without_secrets
from jupyter_sky.notebook.cells.queued_run import QueuedRun, when_up
from jupyter_sky.notebook.kernel import program_words
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.options.ranks import choose_ranks, first_ranks, on_nodes_of, shown_ranks
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.output.follow import follow
from jupyter_sky.notebook.output.progress import SendingLine
from jupyter_sky.notebook.project.sending import send_ahead
from jupyter_sky.notebook.project.volumes import write_back
from jupyter_sky.notebook.scripts.node_script import NodeScript, find_folder, inside
from jupyter_sky.notebook.session import Session
from jupyter_sky.transport.protocol.messages import Script


def run_shell_cell(
    shell: InteractiveShell, session: Session, options: CellOptions, cell: str
) -> BackgroundRun | QueuedRun | None:
    """Run the cell below a ``%%sky --sh``.

    Raises
    ------
    UsageError
        When an option means nothing for it.
    ScriptFailed
        When it fails on a node.
    """
    for option, given in {
        "--in": options.in_names,
        "--out": options.out,
        "--gather": options.gather,
    }.items():
        if given:
            raise UsageError(f"{option} is about names of Python: leave it out beside --sh.")
    if options.retry:
        raise UsageError(
            "--retry runs cells of Python again: leave it out beside --sh, and give torchrun "
            "--max-restarts."
        )
    if options.pdb:
        raise UsageError("--pdb is for cells of Python: leave it out beside --sh.")
    folder = find_folder(options.workdir) if options.workdir is not None else None
    limit = session.settings.size_limit(options.allow_large)
    # As editors of Windows end lines, which a shell takes for a part of each last word.
    cell = cell.replace("\r\n", "\n")
    script = NodeScript(cell, shell_title(cell))

    def begin(cluster: Cluster, handle: DisplayHandle | None) -> BackgroundRun | None:
        placed = inside(folder, cluster, limit, script) if folder else script
        return run_scripts(shell, session, cluster, options, [placed], handle)

    return when_up(session, options, without_secrets(script.title), begin)


def choose_nodes(cluster: Cluster, option: str, wanted: str | None) -> tuple[int, ...]:
    """Return the ranks of the first nodes of a cluster.

    Parameters
    ----------
    cluster
        The cluster.
    option
        What says how many they are.
    wanted
        How many, or the fewest and the most, as ``"1:4"``; by default all.

    Raises
    ------
    UsageError
        When the cluster has not so many.
    """
    fewest, _, most = (wanted or "").partition(":")
    nodes = cluster.state.nodes
    if fewest and int(fewest) > len(nodes):
        scale = f"`%sky scale {int(fewest)}`"
        raise too_few(option, wanted, cluster.name, len(nodes), scale)
    chosen = nodes[: int(most or fewest)] if fewest else nodes
    return tuple(rank for node in chosen for rank in node.ranks)


def too_few(option: str, wanted: object, name: str, nodes: int, first: str) -> UsageError:
    """Return the sentence that a cluster has fewer nodes than wanted, and what to type first."""
    has = format_count(nodes, "node")
    return UsageError(
        f"{option} is {wanted}, but cluster {name} has {has}: ask for fewer, or type {first} first."
    )


def run_scripts(
    shell: InteractiveShell,
    session: Session,
    cluster: Cluster,
    options: CellOptions,
    scripts: Sequence[NodeScript],
    handle: DisplayHandle | None = None,
) -> BackgroundRun | None:
    """Run scripts on the nodes of a cluster, each when the one before has succeeded on all.

    Parameters
    ----------
    shell
        The shell of the notebook.
    session
        Its clusters.
    cluster
        The cluster.
    options
        Which ranks, whose output is shown, whether in the background, and for how long in total.
    scripts
        The scripts.
    handle
        A display that their strip takes the place of, in the background.

    Returns
    -------
    BackgroundRun or None
        The run, if it is in the background.
    """
    titles = [without_secrets(script.title) for script in scripts]
    described = zip(scripts, titles, [*titles[1:], ""], strict=True)
    parts = (_task(shell, cluster, options, *each) for each in described)
    if options.background:
        return _run_in_background(shell, session, cluster, options.timeout, list(parts), handle)
    left = options.timeout
    for number, (task, leaving) in enumerate(parts, 1):
        sending = SendingLine(shell, cluster.name, {"files": leaving})
        run = cluster.run(task)
        try:
            follow(shell, session.panels, cluster, run, left, sending, display=options.display)
            run.check()
        finally:
            is_last = number == len(scripts) or sys.exception() is not None
            if is_last and cluster.alive and not isinstance(sys.exception(), KeyboardInterrupt):
                write_back(shell, cluster)
        left = left and max(0.0, run.began + left - time.monotonic())
    return None


def _run_in_background(
    shell: InteractiveShell,
    session: Session,
    cluster: Cluster,
    timeout: float | None,
    parts: Sequence[tuple[Task, int]],
    handle: DisplayHandle | None,
) -> BackgroundRun:
    (task, leaving), *rest = parts
    sending = SendingLine(shell, cluster.name, {"files": leaving})
    run = cluster.run(task)
    strip = session.panels.strip(cluster, run.id, handle)

    def go_on(task: Task, ended: RunHandle) -> RunHandle:
        run = cluster.run(task)
        session.panels.go_on(strip, cluster, run.id)
        return run

    title = f"{cluster.name} · {task.title}"
    then = [partial(go_on, task) for task, _ in rest]
    made = BackgroundRun(run, title, strip, _bind_nothing, timeout, then=then)
    with sending:
        made.begin(sending.update)
    return made


def _bind_nothing(run: RunHandle, values: dict[int, Any]) -> dict[str, Any]:
    return {}


def _task(
    shell: InteractiveShell,
    cluster: Cluster,
    options: CellOptions,
    script: NodeScript,
    title: str,
    then: str,
) -> tuple[Task, int]:
    """Return a script as a run of a cluster, and the bytes of its folders that it has to send.

    Before, most of large folders is sent, in a cell. ``then`` is the title of what follows, if any.
    """
    ranks = first_ranks(cluster, choose_ranks(cluster, options.ranks, "--ranks"))
    # Any rank stands for its node there.
    shown = shown_ranks(cluster, options.stdout, on_nodes_of(cluster, cluster.all_ranks, ranks))
    folders = send_ahead(shell, cluster, script.folders, ranks)
    blobs = {key: blob for each in folders for key, blob in each.blobs.items()}
    leaving = sum(blobs[key].nbytes for key in cluster.lacking(blobs))
    spec: Script = {
        "text": script.text,
        "env": script.env,
        "folders": [each.folder for each in folders],
        "cwd": script.cwd,
        "together": script.together and len(ranks) > 1,
        "port": 0,
    }
    task = Task(
        ranks=ranks,
        script=spec,
        # Without names: of the notebook's process, scripts need what it has set since.
        update=cluster.sync.update((), shell.user_ns, ranks),
        blobs=blobs,
        show=on_nodes_of(cluster, ranks, shown),
        title=title,
        then=then,
        attempt=Attempt(timeout=options.timeout),  # which an error names, not what is left of it
        program=program_words(shell),
    )
    return task, leaving
