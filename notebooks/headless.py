"""Run a notebook without a browser and print its cells and what they show, as plain text.

Usage: python notebooks/headless.py NOTEBOOK OUTPUT

The two can be the same file: this is how the outputs that a notebook is saved with are made.
"""

from __future__ import annotations

import copy
import sys
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, DeadKernelError
from traitlets.config import Config


def main(source: Path, target: Path) -> int:
    """Run `source`, save it with its outputs as `target`; the exit status says whether it ran."""
    notebook = nbformat.read(source, as_version=4)
    metadata = copy.deepcopy(notebook.metadata)
    client = NotebookClient(
        notebook,
        kernel_name="python3",
        timeout=None,
        record_timing=False,
        coalesce_streams=True,
        resources={"metadata": {"path": str(source.parent)}},
        on_cell_start=lambda cell, cell_index: show_source(cell),
        on_cell_executed=lambda cell, cell_index, execute_reply: show_outputs(cell),
        # Without it, ipykernel warns in every run that the way to the kernel is not encrypted.
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
    )
    try:
        client.execute()
    except CellExecutionError:
        print(f"{source}: the cell above failed.", file=sys.stderr)
        return 1
    except DeadKernelError:
        print(f"{source}: the kernel died in the cell above.", file=sys.stderr)
        return 1
    finally:
        # The kernel has put its version there, which differs from machine to machine.
        notebook.metadata = metadata
        target.parent.mkdir(parents=True, exist_ok=True)
        nbformat.write(notebook, target)
    return 0


def show_source(cell: Any) -> None:
    if cell.cell_type == "code":
        print("\n" + textwrap.indent(cell.source, "  | ", lambda line: True) + "\n", flush=True)
    else:
        print("\n" + cell.source, flush=True)


def show_outputs(cell: Any) -> None:
    for output in cell.outputs:
        match output.output_type:
            case "stream":
                print(output.text, end="")
            case "error":
                print("\n".join(output.traceback))
            case _:
                print(output.data.get("text/plain", f"<{', '.join(output.data)}>"))
    sys.stdout.flush()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
