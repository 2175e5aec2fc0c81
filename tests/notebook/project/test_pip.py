"""Packages on a cluster that is up: installed for its ranks alone, and on nodes that join."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shlex
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import registry, turns
from jupyter_sky.cluster.inventory.storage import processes
from tests.lab import wheels
from tests.notebook.conftest import Notebook
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until

WORD = "import greeting\nprint(greeting.WORD)"


# Builds a wheel of one module, without what other builds need.
BACKEND = """
import zipfile
from pathlib import Path

def build_wheel(folder, config_settings=None, metadata_directory=None):
    name, about = "my_own-1.0-py3-none-any.whl", "my_own-1.0.dist-info"
    with zipfile.ZipFile(Path(folder, name), "w") as wheel:
        wheel.write("my_own.py")
        text = "Metadata-Version: 2.1\\nName: My_own\\nVersion: 1.0\\n"
        wheel.writestr(f"{about}/METADATA", text)
        text = "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n"
        wheel.writestr(f"{about}/WHEEL", text)
        wheel.writestr(f"{about}/RECORD", "")
    return name
"""


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder from which uv takes packages, and nothing else."""
    folder = tmp_path / "shelf"
    for version in ("1.0", "2.0"):
        text = f"__version__ = '{version}'\nWORD = 'hello {version}'\n"
        wheels.write(folder, "greeting", version, greeting=text)
    settings = tmp_path / "settings"
    (settings / "uv").mkdir(parents=True)
    (settings / "uv" / "uv.toml").write_text("no-index = true\n")  # there is no variable for it
    monkeypatch.setenv("XDG_CONFIG_HOME", str(settings))
    monkeypatch.setenv("UV_FIND_LINKS", str(folder))
    return folder


def test_packages_are_installed_for_the_ranks_of_one_cluster(
    notebook: Notebook, shelf: Path
) -> None:
    notebook.run("%%sky --nodes 2\nx = 1")
    notebook.run("%sky pip install greeting==1.0")
    assert "installed greeting 1.0 on 2 nodes" in notebook.stderr
    assert "for this cluster alone" in notebook.stderr
    assert notebook.run("%%sky\nimport greeting\nprint(greeting.WORD, x)") == "hello 1.0 1\n"
    # Programs that a cell starts have it too; neither the notebook nor another cluster does.
    child = "import subprocess, sys\nprint(subprocess.check_output("
    child += "[sys.executable, '-c', 'import greeting; print(greeting.WORD)'], text=True))"
    assert notebook.run(f"%%sky\n{child}") == "hello 1.0\n\n"
    assert importlib.util.find_spec("greeting") is None
    with pytest.raises(ModuleNotFoundError):
        notebook.run(f"%%sky --cluster other --nodes 1\n{WORD}")
    notebook.run("%sky down other")


def test_a_cell_with_pip_installs_and_goes_on(notebook: Notebook, shelf: Path) -> None:
    notebook.run("%%sky --nodes 1\nx = 1")
    said = notebook.run(f"%%sky --pip greeting==1.0,numpy\n{WORD}\nprint(x)")
    assert "installed greeting 1.0 on 1 node" in notebook.stderr
    assert said.endswith("hello 1.0\n1\n")
    # What is there is asked for no more.
    assert notebook.run(f"%%sky --pip greeting==1.0\n{WORD}") == "hello 1.0\n"
    notebook.run("%sky pip install numpy")
    assert "1 node had numpy already" in notebook.stderr
    # It would be started anew with them, also by a kernel that finds it.
    [row] = registry.rows()
    assert row.spec["added"] == ["greeting==1.0", "numpy"]
    assert "greeting==1.0,numpy" in row.spec["line"]


def test_what_two_notebooks_install_at_the_same_time_is_all_there(
    notebook: Notebook, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    notebook.run("%%sky --nodes 1\nx = 1")
    [row] = registry.rows()
    other = {**processes.describe(os.getppid()), "since": time.time()}
    registry.change(row.id, {"installer": other})
    begin = turns.begin

    def begin_and_let_the_other_end(identity: str, role: turns.Role) -> bool:
        begun = begin(identity, role)
        line = f"{row.spec['line']} --pip greeting==1.0"
        registry.change(row.id, {"installer": None, "added": ["greeting==1.0"], "line": line})
        return begun

    monkeypatch.setattr(turns, "begin", begin_and_let_the_other_end)
    notebook.run("%sky pip install numpy")
    assert "waiting for another notebook, which installs packages on it" in notebook.stderr
    assert notebook.run(f"%%sky\n{WORD}") == "hello 1.0\n"
    [row] = registry.rows()
    assert row.spec["added"] == ["greeting==1.0", "numpy"]
    assert "greeting==1.0,numpy" in row.spec["line"]
    assert not row.spec["installer"]


def test_what_is_imported_stays_until_ranks_begin_anew(notebook: Notebook, shelf: Path) -> None:
    notebook.run(f"%%sky --nodes 2 --pip greeting==1.0 --ranks 0\n{WORD}")
    assert "`%pip install" not in notebook.stderr  # it is there already
    assert "installed greeting 1.0 on 2 nodes" in notebook.stderr
    notebook.run("%sky pip install greeting==2.0")
    assert "installed greeting 2.0 on 2 nodes" in notebook.stderr
    kept = "rank 0 keeps greeting 1.0, as imported before: `%sky restart` gives"
    assert kept in notebook.stderr
    assert notebook.run(f"%%sky --ranks 0\n{WORD}") == "hello 1.0\n"
    assert notebook.run(f"%%sky --ranks 1\n{WORD}") == "hello 2.0\n"
    notebook.run("%sky restart")
    assert notebook.run(f"%%sky --ranks 0\n{WORD}") == "hello 2.0\n"


@pytest.mark.parametrize("last", ["a file", "an option"])
def test_a_cluster_that_comes_back_has_what_was_named_last(
    notebook: Notebook, shelf: Path, tmp_path: Path, last: str
) -> None:
    file = tmp_path / "requirements.txt"
    file.write_text("greeting==1.0\n")
    asked = [f"--env {file}", "--pip greeting==2.0"]
    notebook.run("%%sky --nodes 1\npass")
    for option in asked if last == "an option" else reversed(asked):
        notebook.run(f"%%sky {option}\npass")
    agent = registry.rows()[0].machines[0]["pid"]
    with pytest.raises(Exception, match="is lost"):
        notebook.run(f"%%sky\nimport os, time\nos.kill({agent}, 9)\ntime.sleep(600)")
    version = "1.0" if last == "a file" else "2.0"
    assert notebook.run(f"%%sky\n{WORD}").endswith(f"hello {version}\n")


def test_nodes_that_join_get_the_same(notebook: Notebook, shelf: Path) -> None:
    notebook.run("%%sky --nodes 2\npass")
    notebook.run("%sky pip install greeting")
    assert "installed greeting 2.0" in notebook.stderr
    notebook.run("%sky scale 3")
    assert notebook.run(f"%%sky --ranks 2\n{WORD}") == "hello 2.0\n"


def test_wheels_are_taken_from_a_folder(notebook: Notebook, tmp_path: Path) -> None:
    wheels.write(tmp_path / "own", "parting", "1.0", parting="WORD = 'bye'\n")
    notebook.run("%%sky --nodes 1\npass")
    notebook.run(f"%sky pip install parting --wheels {tmp_path / 'own'}")
    assert "installed parting 1.0" in notebook.stderr
    assert notebook.run("%%sky\nimport parting\nprint(parting.WORD)") == "bye\n"
    # A wheel that was built again has the same name, and is another one.
    wheels.write(tmp_path / "own", "parting", "1.0", parting="WORD = 'farewell'\n")
    notebook.run(f"%sky pip install parting --wheels {tmp_path / 'own'}\n%sky restart")
    assert notebook.run("%%sky\nimport parting\nprint(parting.WORD)") == "farewell\n"
    with pytest.raises(sky.UsageError, match="there are no wheels in .*: `%pip download -d "):
        notebook.run(f"%sky pip install parting --wheels {tmp_path}")
    with pytest.raises(sky.UsageError, match="--wheels: there is no folder /nowhere"):
        notebook.run("%%sky --cluster other --nodes 1 --wheels /nowhere\npass")


def test_a_file_brings_its_wheels_and_indexes_to_nodes_that_have_an_environment(
    notebook: Notebook, shelf: Path, tmp_path: Path
) -> None:
    wheels.write(tmp_path / "own", "parting", "1.0", parting="WORD = 'bye'\n")
    file = tmp_path / "requirements.txt"
    file.write_text("./own/parting-1.0-py3-none-any.whl\n-c limits.txt\n")
    look = "import parting\nprint(parting.WORD)"
    assert notebook.run(f"%%sky --nodes 1 --env {file}\n{look}").endswith("bye\n")
    assert "installed parting 1.0 on 1 node" in notebook.stderr
    assert "requirements.txt: `-c limits.txt` is not used on nodes." in notebook.stderr
    # It stays beside what is installed later, and nodes that join get it too.
    notebook.run("%sky pip install greeting==1.0\n%sky scale 2")
    assert notebook.run(f"%%sky --ranks 1\n{WORD}\n{look}") == "hello 1.0\nbye\n"
    # Another version that is asked for is not the one that was sent.
    with pytest.raises(sky.SkyError, match="parting==2.0 could not be installed"):
        notebook.run("%sky pip install parting==2.0")


def test_the_file_named_last_is_what_a_cluster_is_started_with_again(
    notebook: Notebook, shelf: Path, tmp_path: Path
) -> None:
    """Packages of the file before stay while it is up; the new file says all that it has then."""
    for name in ("first", "second"):
        (tmp_path / f"{name}.txt").write_text("greeting==1.0\n")
    wheels.write(shelf, "parting", "1.0", parting="WORD = 'bye'\n")
    (tmp_path / "third.txt").write_text("parting==1.0\n")
    notebook.run(f"%%sky --nodes 1 --env {tmp_path}/first.txt\n{WORD}")
    # Also where it asks for nothing that is not there.
    notebook.run(f"%%sky --env {tmp_path}/second.txt\npass")
    assert "install" not in notebook.stderr
    [row] = registry.rows()
    assert f"{tmp_path}/second.txt" in row.spec["line"]
    both = f"{WORD}\nimport parting\nprint(parting.WORD)"
    notebook.run(f"%%sky --env {tmp_path}/third.txt\npass")
    notebook.run("%sky restart")
    assert notebook.run(f"%%sky\n{both}") == "hello 1.0\nbye\n"
    [row] = registry.rows()
    assert "third.txt" in row.spec["line"]
    assert "second.txt" not in row.spec["line"]


def test_a_file_keeps_packages_within_its_constraints(
    notebook: Notebook, shelf: Path, tmp_path: Path
) -> None:
    (tmp_path / "limits.txt").write_text("greeting<2\nnumpy>=1\n")
    (tmp_path / "more").mkdir()
    file = tmp_path / "more/requirements.txt"
    file.write_text("greeting\n-c ../limits.txt\n")
    assert notebook.run(f"%%sky --nodes 1 --env {file}\n{WORD}").endswith("hello 1.0\n")
    assert "is not used" not in notebook.stderr
    # They hold for what is installed later, too, and for nodes that join.
    with pytest.raises(sky.SkyError, match=r"greeting==2\.0 could not be installed"):
        notebook.run("%sky pip install greeting==2.0")
    notebook.run("%sky scale 2")
    assert notebook.run(f"%%sky --ranks 1\n{WORD}") == "hello 1.0\n"
    # Those of the file as it is now take the place of the former ones.
    (tmp_path / "limits.txt").write_text("greeting==2.0\n")
    notebook.run(f"%%sky --env {file}\npass")
    assert "installed greeting 2.0 on 2 nodes" in notebook.stderr


def test_a_package_whose_source_has_changed_is_installed_anew(
    notebook: Notebook, shelf: Path, tmp_path: Path
) -> None:
    """Its version stays the same while it is worked on."""
    own, file = tmp_path / "own", tmp_path / "requirements.txt"
    own.mkdir()
    (own / "backend.py").write_text(BACKEND)
    (own / "pyproject.toml").write_text(
        '[project]\nname = "My_own"\nversion = "1.0"\n[build-system]\nrequires = []\n'
        'build-backend = "backend"\nbackend-path = ["."]\n'
    )
    (own / "my_own.py").write_text("WORD = 'as it was'\n")
    file.write_text("./own\n")
    look = f"%%sky --nodes 1 --env {file}\nimport my_own\nprint(my_own.WORD)"
    assert notebook.run(look).endswith("as it was\n")
    assert notebook.run(look) == "as it was\n"
    assert "install" not in notebook.stderr
    (own / "my_own.py").write_text("WORD = 'as it is now'\n")
    notebook.run(look)
    assert "installed my-own 1.0 on 1 node" in notebook.stderr
    said = "rank 0 keeps my-own 1.0, as imported before: `%sky restart` gives them new processes"
    assert said in notebook.stderr
    notebook.run("%sky restart")
    assert notebook.run(look) == "as it is now\n"
    assert "install" not in notebook.stderr


def test_a_package_is_installed_from_its_address(notebook: Notebook, tmp_path: Path) -> None:
    wheel = wheels.write(tmp_path, "parting", "1.0", parting="WORD = 'bye'\n")
    notebook.run("%%sky --nodes 1\npass")
    notebook.run(f"%sky pip install 'parting @ {wheel.as_uri()}'")
    assert "installed parting 1.0 on 1 node" in notebook.stderr
    assert notebook.run("%%sky\nimport parting\nprint(parting.WORD)") == "bye\n"


def test_what_cannot_be_installed_leaves_all_as_it_was(
    notebook: Notebook, shelf: Path, tmp_path: Path
) -> None:
    # Nor does a cell run that lacks them, where it has started the cluster.
    with pytest.raises(sky.SkyError, match="nosuch could not be installed"):
        notebook.run("%%sky --nodes 1 --pip nosuch\nx = 2")
    assert ": installing nosuch: failed\n" in notebook.stderr
    with pytest.raises(sky.SkyError, match="nosuch could not be installed"):
        notebook.run("%%sky --pip nosuch\nx = 2")
    with pytest.raises(NameError):
        notebook.run("%%sky\nprint(x)")
    notebook.run("%%sky\nx = 1")
    notebook.run("%sky pip install greeting==1.0")
    with pytest.raises(sky.SkyError) as caught:
        notebook.run("%sky pip install nosuch")
    sentence = str(caught.value)
    assert sentence.startswith(
        "nosuch could not be installed, and nothing was changed: No solution"
    )
    assert "nosuch was not found" in sentence
    with pytest.raises(sky.SkyError, match="nosuch could not be installed"):
        notebook.run("%%sky --pip nosuch\nx = 2")
    assert notebook.run(f"%%sky\n{WORD}\nprint(x)") == "hello 1.0\n1\n"


def test_a_file_of_packages_that_is_not_there_starts_nothing(notebook: Notebook) -> None:
    there = re.escape(str(Path("nothing.lock").absolute()))
    with pytest.raises(sky.UsageError, match=f"there is no file {there}: name a `uv.lock`"):
        notebook.run("%%sky --nodes 1 --env nothing.lock\npass")
    with pytest.raises(sky.UsageError, match="no cluster is running"):
        notebook.run("%%sky\npass")


def test_a_package_that_ranks_miss_is_named(notebook: Notebook, shelf: Path) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        notebook.run("%%sky --nodes 1\nimport greeting")
    assert "the notebook has no greeting either: `%sky pip install greeting`" in caught.value.advice
    notebook.run("%sky pip install greeting")
    notebook.run("%%sky\nimport greeting")


def test_ranks_go_to_the_folder_that_a_cell_names(notebook: Notebook, tmp_path: Path) -> None:
    (tmp_path / "project").mkdir()
    line = f"--workdir {tmp_path / 'project'}"
    text = notebook.run(f"%%sky --nodes 1 {line}\nimport os\nprint(os.getcwd())")
    assert text.endswith(f"{tmp_path / 'project'}\n")
    with pytest.raises(sky.UsageError, match="there is no folder .*nowhere"):
        notebook.run("%%sky --workdir nowhere\npass")


def test_bad_input_gets_a_sentence(notebook: Notebook) -> None:
    with pytest.raises(sky.UsageError, match="no cluster is running"):
        notebook.run("%sky pip install einops")
    with pytest.raises(sky.UsageError, match="name the packages, as in `%sky pip install einops`"):
        notebook.run("%sky pip install")
    with pytest.raises(sky.UsageError, match='takes `install`.*"uninstall" is not one'):
        notebook.run("%sky pip uninstall einops")


@pytest.mark.parametrize(
    ("words", "line"),
    [
        ("-r 'a b.txt'", "%%sky --env 'a b.txt'"),
        ("-ra.txt", "%%sky --env a.txt"),
        ("--requirement=a.txt", "%%sky --env a.txt"),
        ("numpy -r a.txt", "%%sky --env a.txt"),
        ("-r", "%%sky --env FILE"),
    ],
)
def test_a_file_of_packages_is_named_by_a_cell(notebook: Notebook, words: str, line: str) -> None:
    with pytest.raises(sky.UsageError) as caught:
        notebook.run(f"%sky pip install {words}")
    assert str(caught.value) == (
        f"%sky pip takes packages: a cell with `{line}` installs those of a file."
    )


def test_that_cell_installs_them_on_a_cluster_that_is_up(
    notebook: Notebook, shelf: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a b.txt").write_text("greeting==1.0\n")
    notebook.run("%%sky --nodes 1\npass")
    assert notebook.run(f"%%sky --env 'a b.txt'\n{WORD}").endswith("hello 1.0\n")


@pytest.mark.parametrize("word", ['gree"ting', "ünï", "greeting=1.0", "greeting>="])
def test_what_is_no_requirement_is_asked_of_no_node(notebook: Notebook, word: str) -> None:
    with pytest.raises(sky.UsageError, match=f"as pip writes them.*{re.escape(word)}. is not one"):
        notebook.run(f"%sky pip install {shlex.quote(word)}")


@contextlib.contextmanager
def deaf_index() -> Iterator[tuple[str, threading.Event]]:
    """An index that takes connections and says nothing, and what is set when it has one."""
    asked = threading.Event()
    kept = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            with contextlib.suppress(OSError):
                while True:
                    kept.append(server.accept()[0])
                    asked.set()

        thread = threading.Thread(target=accept, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.getsockname()[1]}/simple", asked
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()
            for each in kept:
                each.close()


def has_child(process: psutil.Process, name: str) -> bool:
    """Whether a process has a child of a name; a child may end while it is looked at."""
    for child in process.children():
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.name() == name:
                return True
    return False


def test_stop_ends_an_installation(opened: Callable[..., LiveNotebook], tmp_path: Path) -> None:
    with deaf_index() as (index, asked):
        notebook = opened("stopped", UV_DEFAULT_INDEX=index, UV_CACHE_DIR=str(tmp_path / "cache"))
        notebook.succeed("%%sky --nodes 1 --plugin none\nx = 1")
        cell = notebook.start("%sky pip install greeting")
        until(asked.is_set)
        notebook.interrupt()
        stopped = notebook.finish(cell)
        assert "the installation of greeting was stopped; stopped-" in stopped.traceback
        [row] = [each for each in registry.rows() if each.name.startswith("stopped-")]
        agent = psutil.Process(row.machines[0]["pid"])
        until(lambda: not has_child(agent, "uv"))
        assert notebook.succeed("%%sky\nprint(x)").stdout == "1\n"
