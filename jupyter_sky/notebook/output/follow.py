"""Follows a run in a cell: renders the output of its ranks there until it is over."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.prompts.prompter import Prompter
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.record import KEPT
from jupyter_sky.cluster.runs.task import HangNotice
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.kernel import is_ending
from jupyter_sky.notebook.output.plain_output import PlainOutput
from jupyter_sky.notebook.output.progress import NoticeLine, SendingLine
from jupyter_sky.notebook.output.renderer import Renderer
from jupyter_sky.notebook.panel.manager import PanelManager
from jupyter_sky.transport.protocol.events import Display, Output


def follow(
    shell: InteractiveShell,
    panels: PanelManager,
    cluster: Cluster,
    run: RunHandle,
    timeout: float | None = None,
    sending: SendingLine | None = None,
    leaves_on_interrupt: Callable[[], bool] | None = None,
    display: str | None = None,
    asks_all: bool = False,
) -> None:
    """Follow a run, and render its output.

    Parameters
    ----------
    shell
        The shell of the notebook.
    panels
        Makes the strip above the cell's output, which shows the progress of the run.
    cluster
        The cluster of the run.
    run
        The run.
    timeout
        Seconds after which the run is stopped.
    sending
        Shows how much data has arrived; ``None`` if it was sent before.
    leaves_on_interrupt
        Returns after Ctrl-C whether to leave the run running; by default, whether the kernel is
        ending.
    display
        As of ``--display``: with ``"safe"``, nothing is displayed that could run code in the page;
        by default as `%config Sky.display` says.
    asks_all
        Whether debugger commands initially go to all ranks.

    Raises
    ------
    Interrupted
        If Ctrl-C stopped the run or left it running.
    TimedOut
        If ``timeout`` has passed.
    BrokenPipeError
        If nobody reads the output any more; the run is stopped, unless Ctrl-C would leave it.
    SkyError
        If the output cannot be written for another reason, such as a full disk; as above.
    """
    strip = panels.strip(cluster, run.id)
    is_safe = (display or panels.display) == "safe"
    renderer = Renderer(shell, run.task.show, is_safe, strip.show if strip.is_output else None)
    output = PlainOutput(run.task.show, KEPT) if len(run.task.show) > 1 else None
    if output:
        panels.keep_output(run.id, lambda: output.kept)
    notices, hang = NoticeLine(shell, cluster.name), NoticeLine(shell, cluster.name)

    def on_output(event: Output | Display) -> None:
        if output:
            output.add(event)
        renderer.render(event, flush=run.nothing_waits)

    def on_notice(text: str) -> None:
        renderer.flush(waits=False)
        notices.update(text)

    def on_hang(notice: HangNotice) -> None:
        # A strip shows it meanwhile; here it is only printed without a strip, or afterwards.
        if notice.is_over or not strip.is_output:
            renderer.flush(waits=False)
            hang.update(notice.text)

    ask = Prompter(run, partial(renderer.flush, waits=False), asks_all)
    try:
        with _completing(renderer):
            run.follow(
                on_output,
                begun=strip.show,
                timeout=timeout,
                sending=sending.update if sending else lambda progress: None,
                notice=on_notice,
                hang=on_hang,
                ask=ask,
                tick=renderer.show_overdue,
                is_leaving=leaves_on_interrupt or partial(is_ending, shell),
            )
    except OSError as error:
        if not _is_of_output(error):
            raise
        # A program that cannot print ends, too.
        is_stopped = leaves_on_interrupt is None and not run.finished
        if is_stopped:
            run.stop()
        name = f"{cluster.name}: the run was stopped, as" if is_stopped else f"{cluster.name}:"
        if not isinstance(error, BrokenPipeError):
            raise SkyError(f"{name} its output cannot be written: {error.strerror}.") from None
        if is_stopped:  # as of `jupyter sky torchrun train.py | head`
            print(f"{name} nobody reads its output", file=sys.stderr, flush=True)
        raise
    finally:
        if sending and (run.stopped or run.failed) and not _is_of_output(sys.exception()):
            sending.end("interrupted" if run.stopped else "failed")
        # After Stop, ranks that do not react are still running for some seconds.
        if run.finished or not strip.is_output:
            strip.finish()
        else:
            run.when_over(strip.finish)


@contextmanager
def _completing(renderer: Renderer) -> Iterator[None]:
    """Show the last of a run's output after it, unless none can be shown any more."""
    try:
        yield
    finally:
        if not _is_of_output(sys.exception()):
            renderer.finish()


def _is_of_output(error: BaseException | None) -> bool:
    """Return whether an error means that output cannot be written; some of ours are `OSError`s."""
    return isinstance(error, OSError) and not isinstance(error, SkyError)
