"""What is said of ranks that were stopped or lost, and of files that are not there."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.errors import UsageError
from tests.notebook.conftest import Notebook


def test_what_another_program_stops_is_said_to_be(notebook: Notebook) -> None:
    notebook.run("%%sky --nodes 1 --cluster shared --background\nimport time\ntime.sleep(600)")
    notebook.run("run = _")
    words = [sys.executable, "-m", "jupyter_sky", "interrupt", "--cluster", "shared"]
    said = subprocess.run(words, capture_output=True, text=True, check=True)
    assert said.stdout == "shared: stopped\n"
    with pytest.raises(KeyboardInterrupt, match="rank 0 stopped .*, and not by this notebook"):
        notebook.run("run.result()")


def test_the_last_lines_of_a_lost_rank_are_told_from_what_is_said_of_it(notebook: Notebook) -> None:
    with pytest.raises(RankLost) as lost:
        notebook.run(
            "%%sky --nodes 1\nimport os\nprint('one', flush=True)\nos.kill(os.getpid(), 9)"
        )
    said = "ranks that were not lost keep theirs. Its last lines:\n    one"
    assert str(lost.value).endswith(said)


def test_a_file_that_is_not_there_is_not_brought(notebook: Notebook) -> None:
    notebook.run("%sky up --nodes 1")
    with pytest.raises(UsageError, match="nowhere.txt is not there: its nodes write"):
        notebook.run("%sky get nowhere.txt")
    with pytest.raises(UsageError, match=r"nowhere/\*.png is not there: its nodes write"):
        notebook.run("%sky get 'nowhere/*.png'")
    notebook.run("%%sky\nweights = 1")
    with pytest.raises(UsageError, match=r"Variables come home by `%%sky --out weights`\.$"):
        notebook.run("%sky get weights")


def test_a_file_that_nodes_have_is_not_copied_to_a_folder(
    notebook: Notebook, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    notebook.run("%sky up --nodes 1 --cluster same")
    end = "so a.csv stays where it is, and nothing is copied to data\n"
    said = notebook.run("%sky put a.csv --to data")
    assert said == f"same: its nodes see the files of this computer, {end}"
    said = notebook.run("%sky get 'a*.csv' a.csv --to data")
    assert said.endswith("so a*.csv and a.csv stay where they are, and nothing is copied to data\n")
    assert notebook.run("%sky put a.csv").endswith(" of this computer, a.csv too\n")
