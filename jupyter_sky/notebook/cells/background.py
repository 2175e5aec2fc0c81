"""A cell with ``--background``: it returns at once, and its attempts run in the background."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from IPython.display import DisplayHandle

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.notebook.cells.attempts import Attempts
from jupyter_sky.notebook.cells.cell import Cell
from jupyter_sky.notebook.output.background_run import BackgroundRun
from jupyter_sky.notebook.output.progress import SendingLine
from jupyter_sky.notebook.panel.manager import PanelManager


def begin_in_background(
    cell: Cell, panels: PanelManager, cluster: Cluster, handle: DisplayHandle | None = None
) -> BackgroundRun:
    """Run a cell in the background.

    Parameters
    ----------
    cell
        The cell.
    panels
        Make the strip above its output.
    cluster
        The cluster; in the background, no new one is started.
    handle
        A display for the strip to replace.
    """
    attempts = Attempts(cell, cluster, lambda text: made.say(text))

    def again(run: RunHandle) -> RunHandle | None:
        if following := attempts.next_after(run, None):
            panels.go_on(strip, cluster, following.id)
        return following

    run = attempts.begin()
    title = f"{cluster.name} · {cell.title}"
    strip = panels.strip(cluster, run.id, handle)
    made = BackgroundRun(
        run,
        title,
        strip,
        # The user may keep the handle, which would keep all of the notebook's values alive.
        partial(replace(cell, namespace={}).bind, cluster),
        cell.options.timeout,
        again if cell.options.retry else None,
    )
    with SendingLine(cell.shell, cluster.name, run.task.update.sizes) as sending:
        made.begin(sending.update)
    return made
