"""Follows a run in a cell: what its ranks print and display is rendered there until it is over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.prompts.prompter import Prompter
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.network.transfer import TransferProgress
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import HangNotice
from jupyter_sky.notebook.kernel import is_ending
from jupyter_sky.notebook.output.progress import NoticeLine, SendingLine
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.notebook.panel.manager import PanelManager


def follow(
    shell: InteractiveShell,
    panels: PanelManager,
    cluster: Cluster,
    run: RunHandle,
    timeout: float | None = None,
    sending: SendingLine | None = None,
    leaves_on_interrupt: Callable[[], bool] | None = None,
    is_safe: bool = False,
    asks_all: bool = False,
) -> None:
    """Follow a run, and render what comes.

    Parameters
    ----------
    shell
        The shell of the notebook.
    panels
        Make the strip above the cell's output, which shows how the run goes.
    cluster
        The cluster of the run.
    run
        The run.
    timeout
        Seconds after which it is stopped.
    sending
        Shows how much data has arrived.
    leaves_on_interrupt
        Returns after Ctrl-C whether the run goes on without us; by default whether the kernel is
        ending.
    is_safe
        Whether nothing is displayed that could act in the page.
    asks_all
        Whether commands of the debugger go to all ranks at first.

    Raises
    ------
    Interrupted
        When Ctrl-C stopped the run, or left it.
    TimedOut
        When ``timeout`` was over.
    """
    strip = panels.strip(cluster, run.id)
    renderer = Renderer(shell, run.task.show, is_safe, strip.show if strip.is_output else None)
    hang = NoticeLine(shell, cluster.name)

    def on_hang(notice: HangNotice) -> None:
        # A strip says it while it is so: here it stays where there is none, or once it is over.
        if notice.is_over or not strip.is_output:
            hang.update(notice.text)

    ask = Prompter(run, renderer.flush, asks_all)
    try:
        run.follow(
            lambda event: renderer.render(event, flush=run.nothing_waits),
            begun=strip.show,
            timeout=timeout,
            sending=sending.update if sending else _show_no_sending,
            notice=NoticeLine(shell, cluster.name).update,
            hang=on_hang,
            ask=ask,
            tick=renderer.show_overdue,
            is_leaving=leaves_on_interrupt or partial(is_ending, shell),
        )
    finally:
        renderer.finish()
        strip.finish()


def _show_no_sending(progress: TransferProgress) -> None:
    """Do nothing: the run that is followed has sent its data before."""
