"""Packages on hosts that are up: sent, installed side by side, and for hosts that join."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, wheels
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT

WORD = "import greeting\nword = greeting.WORD"


@pytest.fixture
def bare(lab: Lab, tmp_path: Path) -> str:
    """A Python that has what nodes need, where nothing knows of uv."""
    for host in lab.hosts:
        shutil.rmtree(host.home / ".cache", ignore_errors=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "python"], check=True)
    [library] = (tmp_path / "python" / "lib").glob("python*/site-packages")
    (library / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return str(tmp_path / "python" / "bin" / "python")


@pytest.fixture
def notebook(client: Path, tmp_path: Path, bare: str) -> Iterator[LiveNotebook]:
    made = LiveNotebook(tmp_path / "n.ipynb", HOME=str(client.parent), PYTHONPATH=str(ROOT))
    try:
        made.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {bare!r}")
        yield made
    finally:
        made.close()


def test_hosts_that_are_up_and_that_join(
    lab: Lab, notebook: LiveNotebook, bare: str, tmp_path: Path
) -> None:
    shelf = tmp_path / "shelf"
    wheels.write(shelf, "greeting", "1.0", greeting="WORD = 'hello'\n")
    notebook.succeed("%%sky --hosts lab1,lab2 --plugin none\nx = 1")
    # Neither wheels nor uv are there: both leave this computer once.
    cell = notebook.succeed(f"%sky pip install greeting --wheels {shelf}")
    assert "installed greeting 1.0 on 2 nodes" in cell.shown[-1]
    notebook.succeed(f"%%sky --gather word,x\n{WORD}")
    assert notebook.value("word, x") == (["hello"] * 2, [1, 1])
    programs = lab.hosts[1].home / ".cache" / "jupyter-sky" / "bin"
    assert [each.name for each in programs.iterdir()] == [f"uv-{platform.machine()}"]
    notebook.succeed("%sky scale 3 --hosts lab3")
    notebook.succeed(f"%%sky --gather word\n{WORD}")
    assert notebook.value("word") == ["hello"] * 3
    # Another kernel knows what nodes that join need.
    notebook.restart()
    notebook.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {bare!r}")
    notebook.succeed("%sky attach\n%sky scale 4 --hosts lab4")
    notebook.succeed(f"%%sky --gather word\n{WORD}")
    assert notebook.value("word") == ["hello"] * 4
