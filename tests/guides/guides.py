"""The guides of notebooks/: running one, and reading what its cells show."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import nbformat
from nbclient import NotebookClient

from tests.paths import NOTEBOOKS


def saved(name: str) -> nbformat.NotebookNode:
    """Return a guide as it is saved."""
    return nbformat.read(NOTEBOOKS / f"{name}.ipynb", as_version=4)


def done(
    name: str, changed: Mapping[str, str] | None = None, folder: Path | None = None
) -> nbformat.NotebookNode:
    """Return a guide after it was run here, with some of its text changed, as for fewer steps.

    What it writes goes to a folder, by default the one that the tests are run in.
    """
    notebook = saved(name)
    for text, other in (changed or {}).items():
        [cell] = [each for each in notebook.cells if text in each.source]
        cell.source = cell.source.replace(text, other)
    resources = {"metadata": {"path": str(folder)}} if folder else {}
    patience = {"timeout": 300, "startup_timeout": 300}
    NotebookClient(notebook, kernel_name="python3", resources=resources, **patience).execute()
    return notebook


def text_of(cell: nbformat.NotebookNode) -> str:
    """Return what a cell shows, as text."""
    shown = ""
    former = None
    for output in cell.get("outputs", []):
        # What is printed may be cut anywhere; everything else begins on a line of its own.
        goes_on = output["output_type"] == "stream" and output.get("name") == former
        former = output.get("name")
        data = output.get("data", {}).get("text/plain", "")
        text = output.get("text", "") + data + "\n".join(output.get("traceback", []))
        shown += text if goes_on or not shown else f"\n{text}"
    return re.sub(r"\x1b\[[0-9;]*m", "", shown)


def code(notebook: nbformat.NotebookNode, beginning: str) -> nbformat.NotebookNode:
    return next(
        cell
        for cell in notebook.cells
        if cell.cell_type == "code" and cell.source.startswith(beginning)
    )


def names_no_machine(name: str) -> bool:
    """Whether a saved guide says nothing of where it was made, and needs no kernel to be read."""
    text = (NOTEBOOKS / f"{name}.ipynb").read_text()
    traces = ("widget-view", "/home/", "/root/", "/tmp/", f"{NOTEBOOKS.parent}/")
    language = saved(name).metadata["language_info"]
    return "version" not in language and not any(trace in text for trace in traces)
