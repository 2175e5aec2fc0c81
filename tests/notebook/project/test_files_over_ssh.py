"""`%sky put` and `%sky get` on machines over SSH."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.conftest import cut, kernel_over_ssh, same_client, same_kernel

__all__ = ["kernel_over_ssh", "same_client", "same_kernel"]


@pytest.fixture
def over_ssh(same_kernel: LiveNotebook) -> LiveNotebook:
    return same_kernel


def test_files_go_there_and_come_back(lab: Lab, over_ssh: LiveNotebook, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / "data" / "deep").mkdir(parents=True)
    (project / "table.csv").write_text("a,b\n1,2\n")
    (project / "data" / "deep" / "large").write_bytes(os.urandom(3_000_000))
    over_ssh.succeed(f"%cd {project}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%%sky --hosts lab1,lab2 --cluster files\npass")
    work = [host.home / "jupyter-sky" / "files" for host in lab.hosts[:2]]
    cell = over_ssh.succeed("%sky put table.csv data")
    assert "table.csv and data (3 MB) are on 2 nodes" in cell.stdout
    for folder in work:
        assert (folder / "table.csv").read_text() == "a,b\n1,2\n"
        sent = (project / "data" / "deep" / "large").read_bytes()
        assert (folder / "data" / "deep" / "large").read_bytes() == sent
    # A second one takes no other's place, and what was changed there is not lost without a word.
    (project / "other.csv").write_text("x\n")
    over_ssh.succeed("%sky put other.csv --to data")
    assert (work[0] / "table.csv").exists()
    assert (work[1] / "data" / "other.csv").read_text() == "x\n"
    (work[1] / "table.csv").write_text("changed there\n")
    (project / "table.csv").write_text("changed here\n")
    refused = over_ssh.run("%sky put table.csv")
    assert "the same line with `--force` replaces it" in refused.traceback
    in_a_terminal = over_ssh.run(f"!{sys.executable} -m jupyter_sky put table.csv --cluster files")
    assert "the same line with `--force` replaces it" in in_a_terminal.stdout
    assert (work[1] / "table.csv").read_text() == "changed there\n"
    over_ssh.succeed("%sky put table.csv --force")
    assert (work[1] / "table.csv").read_text() == "changed here\n"
    # As that says, too, where the user has named the folder that the file is in.
    (work[1] / "data/deep/large").write_text("changed there\n")
    (project / "data/deep/large").write_text("changed here\n")
    refused = over_ssh.run("%sky put data")
    assert "the same line with `--force` replaces it" in refused.traceback
    over_ssh.succeed("%sky put data --force")
    assert (work[1] / "data/deep/large").read_text() == "changed here\n"
    # As whole folders of data are that Git is to leave alone.
    (project / "data" / ".gitignore").write_text("*\n")
    refused = over_ssh.run("%sky put data")
    assert (
        "data is sent, as .gitignore leaves it out: say otherwise in a .skyignore"
        in refused.sentence
    )
    (project / "data" / ".gitignore").unlink()
    assert "there is no nothing.csv here" in over_ssh.run("%sky put nothing.csv").sentence

    over_ssh.succeed(
        "%%sky\nimport os, socket\nos.makedirs('outputs/more', exist_ok=True)\n"
        "for name in 'a.png', 'b.png', 'c.txt', 'more/d.png':\n"
        "    open('outputs/' + name, 'w').write(name + socket.gethostname())\n"
        "open('outputs/large', 'wb').write(os.urandom(5_000_000))\n"
        "os.makedirs('all data', exist_ok=True)\nopen('all data/e.txt', 'w').write('e')\n"
        "os.symlink(os.path.abspath('all data'), 'outputs/all data')"
    )
    cell = over_ssh.succeed("%sky get 'outputs/*.png'")
    assert cell.shown[-1].startswith("files: brought outputs/a.png and outputs/b.png (18 B)")
    assert (project / "outputs" / "b.png").read_text() == "b.pnglab1"
    assert not (project / "outputs" / "c.txt").exists()
    cell = over_ssh.succeed("%sky get outputs")
    assert "2 files are here already" in cell.shown[-1]
    line = "%sky get 'outputs/all data'"
    followed = f"links to folders elsewhere are not followed: `{line}` brings what is there"
    assert cell.stdout == f"files: {followed}\n"
    assert not (project / "outputs" / "all data").exists()
    over_ssh.succeed(line)
    assert (project / "outputs" / "all data" / "e.txt").read_text() == "e"
    assert (project / "outputs" / "more" / "d.png").read_text() == "more/d.pnglab1"
    there = (work[0] / "outputs" / "large").read_bytes()
    assert (project / "outputs" / "large").read_bytes() == there
    assert "5 files are here already" in over_ssh.succeed("%sky get outputs").stdout
    over_ssh.succeed("%sky get outputs/c.txt --ranks all --to both")
    texts = [(project / "both" / f"rank{n}" / "outputs" / "c.txt").read_text() for n in (0, 1)]
    assert texts == ["c.txtlab1", "c.txtlab2"]
    # What is newer here stays.
    (project / "outputs" / "c.txt").write_text("mine")
    refused = over_ssh.run("%sky get outputs/c.txt")
    assert "is newer than the one on the node: add `--force` to replace it" in refused.sentence
    over_ssh.succeed("%sky get outputs/c.txt --force")
    assert (project / "outputs" / "c.txt").read_text() == "c.txtlab1"
    assert over_ssh.run("%sky get nothing").sentence == (
        "UsageError: there is no nothing on lab1, where rank 0 is: names are those in the folder "
        "that ranks begin in."
    )
    # Which is no advice where the user has said where it is.
    assert over_ssh.run("%sky get ~/nothing").sentence == (
        "UsageError: there is no ~/nothing on lab1, where rank 0 is."
    )
    assert not list(project.rglob("*.sky-part"))


def test_files_of_any_name_go_there_and_come_back(
    lab: Lab, over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    over_ssh.succeed(f"%cd {tmp_path}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%%sky --hosts lab1 --cluster names\npass")
    names = ["x" * 255, "\N{HIRAGANA LETTER A}" * 85, "run[1].csv", "a b#%.csv"]
    (tmp_path / "sent").mkdir()
    for name in names:
        (tmp_path / "sent" / name).write_text(name)
    over_ssh.succeed("%sky put sent")
    over_ssh.succeed("%sky get sent --to back")
    assert {each.name: each.read_text() for each in (tmp_path / "back" / "sent").iterdir()} == {
        name: name for name in names
    }
    # A node says what it likes: a terminal is not told to do anything by it.
    over_ssh.succeed("%%sky\nfor name in 'a', 'b': open(f'sent/x\\x1b[2J{name}', 'w').write(name)")
    cell = over_ssh.succeed("%sky get 'sent/x*[ab]' --to strange")
    assert cell.shown[-1].startswith(r"names: brought sent/x\x1b[2Ja and sent/x\x1b[2Jb (2 B) from")
    over_ssh.succeed("%sky get sent/run[1].csv --to one")
    assert (tmp_path / "one" / "sent" / "run[1].csv").read_text() == "run[1].csv"


def test_files_whose_long_names_begin_alike_are_not_mixed(
    lab: Lab, over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    over_ssh.succeed(f"%cd {tmp_path}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%%sky --hosts lab1 --cluster alike\npass")
    folder = lab.hosts[0].home / "runs"
    folder.mkdir()
    for number in range(6):  # as from an archive: of one size and time
        path = folder / f"{'learning-rate-' * 8}{number}"
        path.write_bytes(bytes([number]) * 600_000)
        os.utime(path, ns=(10**18, 10**18))
    over_ssh.succeed("%sky get ~/runs")
    brought = {each.name: each.read_bytes() for each in (tmp_path / "runs").iterdir()}
    assert brought == {each.name: each.read_bytes() for each in folder.iterdir()}


def test_where_files_have_no_room_is_said(lab: Lab, over_ssh: LiveNotebook, tmp_path: Path) -> None:
    over_ssh.succeed(f"%cd {tmp_path}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%%sky --hosts lab1 --cluster room\npass")
    (lab.hosts[0].home / "model").write_bytes(os.urandom(900_000))
    (lab.hosts[0].home / "results").mkdir()
    (lab.hosts[0].home / "results" / "x").touch()
    (tmp_path / "results").touch()
    said = over_ssh.run("%sky get ~/results").sentence
    assert f"{tmp_path}/results is a file here, and a folder there: add `--to FOLDER`" in said
    place = tmp_path / "small"
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=200k", "none", str(place)], check=True)
    try:
        said = over_ssh.run(f"%sky get ~/model --to {place}").sentence
        assert f"no room is left in {place} on this computer: free some" in said
        subprocess.run(["mount", "-o", "remount,size=2m", str(place)], check=True)
        over_ssh.succeed(f"%sky get ~/model --to {place}")
        sent = (lab.hosts[0].home / "model").read_bytes()
        assert (place / "model").read_bytes() == sent
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def test_what_a_run_misses_and_what_it_wrote(
    lab: Lab, over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    (tmp_path / "project").mkdir()
    (tmp_path / "project" / "table.csv").write_text("1,2")
    over_ssh.succeed(f"%cd {tmp_path / 'project'}\n%config Sky.plugin = 'none'")
    cell = over_ssh.run("%%sky --hosts lab1,lab2 --cluster said\nopen('table.csv')")
    sends = "the notebook has table.csv (3 B): `%sky put table.csv` sends it to the nodes"
    assert sends in cell.traceback
    over_ssh.succeed("%sky put table.csv")
    cell = over_ssh.succeed("%%sky\nprint(open('table.csv').read())")
    assert cell.stdout == "1,2\n"
    assert not any("wrote" in text for text in cell.shown)
    cell = over_ssh.run("%%sky\nopen('nowhere.csv')")
    assert "%sky put" not in cell.traceback
    # Each node says what its part of a run has written.
    cell = over_ssh.succeed("%%sky\nimport os\nos.makedirs('out')\nopen('out/a', 'w').close()")
    assert cell.shown[-1] == "said: wrote out/: `%sky get out --ranks all` brings it here"
    cell = over_ssh.succeed("%%sky --ranks 0\nopen('it is', 'w').close()")
    assert cell.shown[-1] == "said: wrote it is: `%sky get 'it is'` brings it here"
    cell = over_ssh.succeed("%%sky --ranks 0\nfor each in 'uv':\n    open(each, 'w').close()")
    assert cell.shown[-1] == "said: wrote u and v: `%sky get u v` brings these here"
    over_ssh.succeed("%sky get 'it is'")
    assert (tmp_path / "project" / "it is").exists()
    cell = over_ssh.succeed("%%sky --ranks 1\nopen('mine', 'w').close()")
    assert "`%sky get mine --ranks 1`" in cell.shown[-1]


def test_a_folder_is_kept_like_here(lab: Lab, over_ssh: LiveNotebook, tmp_path: Path) -> None:
    project = tmp_path / "project"
    (project / ".git").mkdir(parents=True)
    (project / "word.txt").write_text("first")
    (project / ".gitignore").write_text("left\n")
    (project / "left").write_text("left")
    over_ssh.succeed(f"%cd {project}\n%config Sky.plugin = 'none'\n%config Sky.workdir = '.'")
    look = "\nimport os\nfound = open('word.txt').read(), os.path.exists('left')"
    over_ssh.succeed(f"%%sky --hosts lab1,lab2 --cluster kept --gather found{look}")
    assert over_ssh.value("found") == [("first", False)] * 2
    (project / "word.txt").write_text("second")
    over_ssh.succeed(f"%%sky --gather found{look}")
    assert over_ssh.value("found") == [("second", False)] * 2
    # A script has sent another folder to the same place since.
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "word.txt").write_text("other")
    cell = over_ssh.succeed(f"%%sky --sh --workdir {tmp_path / 'other'}\ncat word.txt")
    assert cell.stdout.endswith("other")
    over_ssh.succeed(f"%%sky --gather found{look}")
    assert over_ssh.value("found") == [("second", False)] * 2
    (project / "large").write_bytes(bytes(3_000_000))
    over_ssh.succeed("%config Sky.large = '1MB'")
    refused = over_ssh.run("%%sky\npass")
    assert "leave out what" in refused.sentence and "or add `--allow-large`" in refused.sentence


def test_a_cell_in_the_background_waits_for_no_node_that_does_not_answer(
    lab: Lab, over_ssh: LiveNotebook, tmp_path: Path
) -> None:
    (tmp_path / "queued").mkdir()
    (tmp_path / "queued" / "word.txt").write_text("first")
    over_ssh.succeed(f"%cd {tmp_path / 'queued'}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%config Sky.workdir = '.'")
    over_ssh.succeed("%%sky --hosts lab1,lab2 --cluster queued --patience 600\nimport time")
    over_ssh.succeed("%%sky --background\ntime.sleep(600)")
    with cut(lab.hosts[1]):
        cell = over_ssh.succeed("%%sky --background\nprint('second')")
    assert "sent" not in "".join(cell.shown)
    over_ssh.succeed("%sky interrupt")


def test_what_is_large_goes_in_portions(lab: Lab, over_ssh: LiveNotebook, tmp_path: Path) -> None:
    project = tmp_path / "large"
    project.mkdir()
    (project / "data").write_bytes(os.urandom(3_500_000))
    over_ssh.succeed(f"%cd {project}\n%config Sky.plugin = 'none'")
    over_ssh.succeed("%%sky --hosts lab1,lab2 --cluster portions\npass")
    over_ssh.succeed("from jupyter_sky.serialization import folders\nwhole = folders.PORTION")
    over_ssh.succeed("folders.PORTION = 1_000_000")
    work = [host.home / "jupyter-sky" / "portions" for host in lab.hosts[:2]]
    cell = over_ssh.succeed("%sky put data")
    assert cell.shown[-1].startswith("portions: sent data (3.5 MB) in ")
    assert "data (3.5 MB) is on 2 nodes" in cell.stdout
    for folder in work:
        assert (folder / "data").read_bytes() == (project / "data").read_bytes()
        assert not list(folder.glob(".data.*"))
    # Sent again it does not leave, and one that is another now does.
    before = [(folder / "data").stat().st_mtime_ns for folder in work]
    assert not over_ssh.succeed("%sky put data").shown
    assert [(folder / "data").stat().st_mtime_ns for folder in work] == before
    (project / "data").write_bytes(os.urandom(2_500_000))
    assert "sent data (2.5 MB) in" in over_ssh.succeed("%sky put data").shown[-1]
    (work[1] / "data").write_text("changed there")
    (project / "data").write_bytes(os.urandom(2_600_000))
    assert "the same line with `--force` replaces it" in over_ssh.run("%sky put data").traceback
    over_ssh.succeed("%sky put data --force")
    for folder in work:
        assert (folder / "data").read_bytes() == (project / "data").read_bytes()
    # What is stopped says what was on its way, and not only that it began at 0%.
    (project / "more").write_bytes(os.urandom(12_000_000))
    cell = over_ssh.start("%sky put more")
    over_ssh.until(cell, lambda cell: any("%" in text for text in cell.shown))
    over_ssh.interrupt()
    assert "the same line goes on where it was stopped" in over_ssh.finish(cell).traceback
    assert cell.shown[-1] == "portions: sending more (12 MB): interrupted"
    assert "more (12 MB) is on 2 nodes" in over_ssh.succeed("%sky put more").stdout
    over_ssh.succeed("%sky down")
    over_ssh.succeed("folders.PORTION = whole")
