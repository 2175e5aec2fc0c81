"""What a page asks about a cluster while it shows it, beside what the snapshots have.

Nobody pays for it who does not look: it is not sent before somebody asks.
"""

from __future__ import annotations

from collections.abc import Mapping

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.snapshot import History, ProfileView, Variables
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.output.name_table import NameTable
from jupyter_sky.notebook.profiling.flame import as_html

PROFILED = 10.0
"""Seconds for which the button of a page has the ranks looked at."""

Answer = History | Variables | ProfileView


def answer(cluster: Cluster, question: Mapping[str, object]) -> Answer:
    """Return what a page asks of a cluster; it may take a while.

    Parameters
    ----------
    cluster
        The cluster.
    question
        What ``Ask`` of ``labextension/src/action.ts`` sends, as far as one can trust a page.

    Raises
    ------
    SkyError
        When it cannot be answered.
    """
    match question:
        case {"about": "history", "since": int(since)}:
            return cluster.usage.history(cluster.state.nodes, since)
        case {"about": "variables"}:
            return _variables(cluster)
        case {"about": "profile"}:
            profile = cluster.profiler.profile(PROFILED, cluster.all_ranks)
            return {"html": as_html(profile, cluster.name)}
    raise UsageError("this version of jupyter_sky does not know what the page asks: reload it.")


def _variables(cluster: Cluster) -> Variables:
    names = cluster.looks.names()
    table = NameTable(names.rows, cluster.all_ranks)
    return {
        "head": list(table.head),
        "rows": [
            {"cells": list(cells), "differs": differs}
            for cells, differs in zip(table.rows, table.differ, strict=True)
        ],
        "notes": list(names.notes),
    }
