"""Files that are sent to nodes: what was typed, and what is read of it here."""

from __future__ import annotations

from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.notebook.project.files import read_sources


def test_a_file_below_the_working_folder_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "here" / "data").mkdir(parents=True)
    (tmp_path / "here" / "data" / "a.csv").write_text("1")
    (tmp_path / "b.csv").write_text("2")
    monkeypatch.chdir(tmp_path / "here")
    below, beside = read_sources(["data/*.csv", "../b.csv"], None, None, False)
    assert (below.folder["target"], beside.folder["target"]) == ("data", ".")
    [into] = read_sources(["data/a.csv"], "there", None, False)
    assert into.folder["target"] == "there"
    with pytest.raises(UsageError, match=f"there is no c.csv here, in {tmp_path / 'here'}"):
        read_sources(["c.csv"], None, None, False)


def test_a_working_folder_that_was_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(SkyError, match="no longer exists: change to one that does with `%cd`"):
        read_sources(["a.csv"], None, None, False)


def test_of_two_files_with_one_place_none_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "m.csv").write_text(name)
    monkeypatch.chdir(tmp_path)
    assert len(read_sources(["a/m.csv", "b/m.csv", "a/m.csv"], None, None, False)) == 3
    with pytest.raises(UsageError, match=r"b/m.csv would both be d/m.csv: copy them one by one"):
        read_sources(["a/m.csv", "b/m.csv"], "d", None, False)
