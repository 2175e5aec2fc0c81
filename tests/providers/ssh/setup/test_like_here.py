"""Nodes that get what the notebook imports, or what a file says: on hosts that have only Python."""

from __future__ import annotations

import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lab import Lab, wheels
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT


@pytest.fixture(scope="module")
def index(lab: Lab, shelf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An index with packages in several versions."""
    folder = tmp_path_factory.mktemp("index")
    for wheel in shelf.glob("*.whl"):
        (folder / wheel.name).symlink_to(wheel)
    for version in ("1.0", "2.0", "3.0"):
        wheels.write(folder, "greeting", version, greeting=f"WORD = 'hello {version}'\n")
        wheels.write(folder, "parting", version, parting=f"WORD = 'bye {version}'\n")
    wheels.write(folder, "third", "1.0", third="WORD = 'third'\n")
    with wheels.serve(folder, lab.address) as address:
        yield address


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    """A folder of packages that the notebook has installed."""
    folder = tmp_path / "env" / "site-packages"
    folder.mkdir(parents=True)
    return folder


def install(
    folder: Path, name: str, version: str, origin: dict | None = None, **files: str
) -> None:
    """Install a package as pip does."""
    wheel = wheels.write(folder.parent / "built", name, version, **files)
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    if origin:
        about = folder / f"{name}-{version}.dist-info"
        (about / "direct_url.json").write_text(json.dumps(origin))


@pytest.fixture
def notebook(client: Path, tmp_path: Path, installed: Path) -> Iterator[LiveNotebook]:
    """A notebook on whose nodes environments are made."""
    path = f"{ROOT}:{installed}"
    made = LiveNotebook(tmp_path / "n.ipynb", HOME=str(client.parent), PYTHONPATH=path)
    try:
        made.succeed("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
        yield made
    finally:
        made.close()


def test_nodes_have_what_the_notebook_imports_in_its_versions(
    lab: Lab, notebook: LiveNotebook, installed: Path, index: str, tmp_path: Path
) -> None:
    shutil.rmtree(lab.hosts[0].home / ".cache", ignore_errors=True)
    install(installed, "greeting", "2.0", greeting="WORD = 'hello 2.0'\n")
    install(installed, "parting", "1.0", parting="WORD = 'bye 1.0'\n")
    install(installed, "third", "1.0", third="WORD = 'third'\n")
    local = {"url": "file:///somewhere/own", "dir_info": {}}
    install(installed, "own", "0.1", local, own="WORD = 'from a folder'\n")
    (tmp_path / "helpers.py").write_text("import third\n\ndef word():\n    return third.WORD\n")
    notebook.succeed("import greeting, own\nimport helpers")
    cell = notebook.start(
        f"%%sky --hosts lab1 --index {index} --out words\n"
        "def said():\n    import parting\n    return parting.WORD\n"
        "words = [greeting.WORD, said(), helpers.word(), own.WORD]"
    )
    notebook.finish(cell)
    assert cell.error is None, cell.traceback
    assert notebook.value("words") == ["hello 2.0", "bye 1.0", "third", "from a folder"]
    [shown] = [text for text in cell.shown if "to be installed once" in text]
    assert "greeting 2.0, own 0.1, parting 1.0 and third 1.0 as the notebook has them" in shown
    assert f"from the usual package index, {index.split('/')[2].split(':')[0]}/simple" in shown
    assert "this computer (1 wheel, " in shown
    # Another notebook's cluster, which asks for the same, finds it there.
    second = notebook.succeed(f"%%sky --cluster second --hosts lab1 --index {index}\npass")
    assert not any("to be installed" in text for text in second.shown)
    # And a node that joins gets the same, also where another kernel brings it.
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky\n%sky attach second\n%sky scale 2 --hosts lab2")
    notebook.succeed("%%sky --ranks 1 --gather words\nimport greeting, own\nwords = greeting.WORD")
    assert notebook.value("words") == ["hello 2.0"]
    notebook.succeed("%sky down second")


def test_a_version_that_cannot_be_had_is_named_with_what_to_do(
    notebook: LiveNotebook, installed: Path, index: str
) -> None:
    install(installed, "greeting", "9.9", greeting="WORD = 'new'\n")
    cell = notebook.run(f"%%sky --hosts lab3 --index {index}\nimport greeting")
    assert "lab3: the notebook has greeting 9.9, which cannot be had there: " in cell.sentence
    assert "`--pip 'greeting>0'` takes another version" in cell.sentence
    assert "`--env none` leaves out what is not named" in cell.sentence
    taken = f"%%sky --hosts lab3 --index {index} --pip 'greeting>0' --out word\n"
    notebook.succeed(f"{taken}import greeting\nword = greeting.WORD")
    assert notebook.value("word") == "hello 3.0"
    notebook.succeed("%sky down\n%config Sky.env = 'none'")
    cell = notebook.run(f"%%sky --hosts lab3 --index {index}\nimport greeting")
    assert "`%sky pip install greeting==9.9`" in cell.traceback
    refused = notebook.run("%%sky --env imports\npass")
    assert "is running with --env none, and the cell asks for imports" in refused.sentence


def test_a_file_says_what_nodes_have_beside_files_and_variables(
    notebook: LiveNotebook, index: str, tmp_path: Path
) -> None:
    (tmp_path / "requirements.txt").write_text("greeting==2.0\n")
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("kept")
    line = f"%%sky --hosts lab4 --env requirements.txt --index {index}"
    cell = notebook.succeed(
        f"{line} --include data --variable LEVEL=3 --out found\n"
        "import greeting, os, pathlib\n"
        "found = [greeting.WORD, os.environ['LEVEL'], pathlib.Path('data/a.txt').read_text()]"
    )
    assert notebook.value("found") == ["hello 2.0", "3", "kept"]
    assert "greeting 2.0 of requirements.txt" in cell.shown[0]
    notebook.succeed(f"{line} --variable LEVEL=4 --out found\nfound = os.environ['LEVEL']")
    assert notebook.value("found") == "4"
    # A pool shows what a cell does, and finds what that has made.
    pool = notebook.succeed(
        "import jupyter_sky as sky\n"
        f"image = sky.Image(pip_indexes=[{index!r}], like='requirements.txt')\n"
        "with sky.ComputePool(provider=sky.SSH('lab4'), image=image) as pool:\n    pass"
    )
    assert "1 ssh node, 1 rank on CPU, ready in" in pool.shown[0]
    assert "to be installed" not in pool.shown[0]
    # What the file says by now is added where the cluster is up.
    (tmp_path / "requirements.txt").write_text("greeting==2.0\nparting==3.0\n")
    cell = notebook.succeed(f"{line} --out word\nimport parting\nword = parting.WORD")
    assert any("installed parting 3.0 on 1 node" in text for text in cell.shown)
    assert notebook.value("word") == "bye 3.0"
