"""Run a notebook without a browser and print its cells and what they show, as plain text.

Usage: python notebooks/headless.py NOTEBOOK OUTPUT
"""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError


def main(source: Path, target: Path) -> int:
    """Run `source`, save it with its outputs as `target`; the exit status says whether it ran."""
    notebook = nbformat.read(source, as_version=4)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=None,
        resources={"metadata": {"path": str(source.parent)}},
        on_cell_complete=lambda cell, cell_index: show(cell),
    )
    try:
        client.execute()
    except CellExecutionError:
        print(f"{source}: the cell above failed.", file=sys.stderr)
        return 1
    finally:
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    return 0


def show(cell: Any) -> None:
    """Print a cell as a terminal would have it: its source behind a bar, then its outputs."""
    if cell.cell_type == "markdown":
        print(f"\n{cell.source}")
    elif cell.source:
        print("\n" + textwrap.indent(cell.source, "  | ", lambda line: True) + "\n")
        for output in cell.outputs:
            print(text_of(output).rstrip("\n"))
    sys.stdout.flush()


def text_of(output: Any) -> str:
    """The plain text of one output of a cell."""
    if output.output_type == "stream":
        return output.text
    if output.output_type == "error":
        return "\n".join(output.traceback)
    return output.data.get("text/plain", f"({', '.join(output.data)})")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
