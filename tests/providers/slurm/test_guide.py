"""The guide to Slurm runs, on a real one.

``python -m tests.providers.slurm.test_guide`` makes the outputs that it is saved with.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import nbformat
import pytest

from tests.guides.guides import done, names_no_machine, saved, text_of
from tests.paths import NOTEBOOKS, ROOT
from tests.providers.slurm.controller import real_slurm

NAME = "slurm"


def run(home: Path) -> nbformat.NotebookNode:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("JPY_SESSION_NAME", str(home / f"{NAME}.ipynb"))
        return done(NAME, folder=home)


def shows_what_it_says(notebook: nbformat.NotebookNode) -> None:
    assert not any("Traceback" in text_of(cell) for cell in notebook.cells)
    text = "\n".join(map(text_of, notebook.cells))
    for said in (
        "main: 2 × A100, 2 CPUs, 4 GB, 2 of 2 nodes idle, at most 1:00:00",
        "--provider slurm --partition main`",
        "2 slurm nodes, 2 ranks on A100, group formed with torch",
        "2 ranks have met",
        "[('n1', '0'), ('n2', '0')]",
        "sky-slurm",
        "3 slurm nodes, 3 ranks on A100, group formed with torch",
        "3 ranks have met",
        "ended; nothing is left running",
        "nothing was left behind",
        " GPU hours",
        "used: hours of GPUs",
    ):
        assert said in text, said


def test_it_shows_what_it_says(slurm: Path, tmp_path: Path) -> None:
    shows_what_it_says(run(tmp_path))


def test_its_saved_outputs_are_those_of_a_run() -> None:
    shows_what_it_says(saved(NAME))
    assert names_no_machine(NAME)


def main() -> None:
    """Run the guide and save it with its outputs."""
    with tempfile.TemporaryDirectory() as home, pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", home)
        with real_slurm():
            notebook = run(Path(home))
    notebook.metadata = saved(NAME).metadata
    nbformat.write(notebook, NOTEBOOKS / f"{NAME}.ipynb")


if __name__ == "__main__":
    main()
