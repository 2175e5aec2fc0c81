"""Shows what the ranks of a cell have recorded: ``%%sky --profile`` and ``--show-memory``."""

from __future__ import annotations

import itertools
import sys
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell
from IPython.display import display

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.profiling.trace import Trace, missing_text, trace
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_bytes
from jupyter_sky.notebook.options.definitions import CellOptions
from jupyter_sky.notebook.profiling.memory import memory_text
from jupyter_sky.notebook.profiling.timeline import as_html, as_text
from jupyter_sky.transport.protocol.profiling import RecordKind

_ENDS_WITHIN = 10.0  # seconds


def wanted_records(options: CellOptions) -> tuple[RecordKind, ...]:
    """Return what ranks should record during a cell.

    Raises
    ------
    UsageError
        If nobody would see it.
    """
    kinds: list[RecordKind] = []
    if options.profile:
        kinds.append("torch")
    if options.show_memory:
        kinds.append("memory")
    option = "--profile" if options.profile else "--memory"
    if kinds and options.background:
        raise UsageError(
            f"{option} shows what was recorded below the cell when it has ended: leave out "
            "--background, or look at the run with `%sky profile`."
        )
    if kinds and options.sh:
        raise UsageError(f"{option} is for cells of Python: leave out --sh, or {option}.")
    return tuple(kinds)


def show_records(shell: InteractiveShell, cluster: Cluster, run: RunHandle) -> None:
    """Show what ranks recorded in a finished run, however it ended."""
    if run.task.records and not run.finished:
        # After Stop, torch takes a moment to prepare its records.
        cluster.wait_until_idle(_ENDS_WITHIN)
    for kind in run.task.records:
        fetched = cluster.profiler.recorded(run.id, kind, run.task.ranks)
        if kind == "memory":
            print(memory_text(fetched, cluster.name))
        else:
            _show_trace(shell, cluster, trace(fetched))


def _show_trace(shell: InteractiveShell, cluster: Cluster, found: Trace) -> None:
    if not found.records:
        print(f"{cluster.name}: torch's profiler has recorded nothing.", file=sys.stderr)
        print("\n".join(missing_text(found.missing)), file=sys.stderr)
        return
    file = _new_file(cluster.name)
    try:
        found.write(file)
        size = format_bytes(file.stat().st_size)
        said = f"{file} ({size}) has the trace of all ranks: open it at https://ui.perfetto.dev"
    except OSError as error:
        said = f"the trace could not be written to {file}: {error.strerror}"
    text = as_text(found, cluster.name, said)
    if hasattr(shell, "kernel"):
        html = as_html(found, cluster.name, said)
        display({"text/html": html, "text/plain": text}, raw=True)
    else:
        print(text)


def _new_file(name: str) -> Path:
    """Return an unused file name in the notebook's folder."""
    names = (Path(f"trace-{name}-{number}.json") for number in itertools.count(1))
    return next(file for file in names if not file.exists())
