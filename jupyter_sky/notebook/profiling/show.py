"""Makes a profile, and shows it in the cell or a terminal."""

from __future__ import annotations

from collections.abc import Sequence

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from jupyter_sky.api.display.progress_line import ProgressLine
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.profiling.profiler import LONGEST
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_duration
from jupyter_sky.notebook.profiling.flame import as_html
from jupyter_sky.notebook.profiling.text import as_text

USUAL = 10.0
"""Seconds for which ranks are looked at."""


def show_profile(
    shell: InteractiveShell, cluster: Cluster, seconds: float | None, ranks: Sequence[int]
) -> None:
    """Profile ranks for some time, and show the result.

    Raises
    ------
    UsageError
        If there is nothing to profile, or it would take too long.
    """
    seconds = USUAL if seconds is None else seconds
    if seconds > LONGEST:
        raise UsageError(
            f"%sky profile looks at ranks for {format_duration(LONGEST)} at most: type "
            "`%sky profile 10s`; Ctrl-C ends it earlier and shows what has come."
        )
    if not ranks:
        raise UsageError("no rank was chosen: leave `--ranks` out for all of them.")
    line = ProgressLine(shell, cluster.name)
    looking = f"looking at what the ranks do for {seconds:g} s"
    profile = cluster.profiler.profile(seconds, ranks, begun=lambda: line.update(looking))
    line.update(f"looked at what the ranks did for {profile.seconds:.1f} s")
    text = as_text(profile, cluster.name)
    if not hasattr(shell, "kernel"):
        print(text)
        return
    display({"text/html": as_html(profile, cluster.name), "text/plain": text}, raw=True)
