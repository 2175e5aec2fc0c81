"""Nodes with homes of their own: nothing that the login node has is there, and no internet.

Each node is a mount namespace in which the home, the environment of the tests and their code are
hidden; it has a Python, as nodes have.
"""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import of_the_user
from jupyter_sky.providers.node_defaults import NEEDED
from jupyter_sky.providers.slurm.provider import Slurm
from tests.cluster.cells import Cells
from tests.lab import Lab, wheels
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.slurm.controller import real_slurm
from tests.providers.slurm.test_login import login_host
from tests.providers.slurm.test_provider import interrupt_when, queue, start, without_owner
from tests.waiting import until

HIDE = """
for place in "$HOME" {hidden}; do
    # One may be below another.
    test ! -d "$place" || mount -t tmpfs -o mode=755 node "$place" || exit
done
exec "$@"
"""


@pytest.fixture(scope="module")
def login(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The home of the login node, with folders of ours in it."""
    folder = tmp_path_factory.mktemp("login")
    if subprocess.run(["unshare", "--mount", "true"], capture_output=True).returncode:
        pytest.skip("nodes with homes of their own need root and namespaces: run it privileged")
    hidden = HIDE.format(hidden=f"'{ROOT}' '{Path(sys.prefix)}'")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(folder))
        patch.setenv("JUPYTER_SKY_HOME", str(folder / "sky"))
        patch.delenv("XDG_CACHE_HOME", raising=False)
        # What a site has for all: an interpreter, and none of the environment of the tests.
        base = Path(sys.base_prefix) / "bin"
        with real_slurm(on_nodes=["unshare", "--mount", "sh", "-c", hidden, "sh"]):
            patch.setenv("PATH", f"{base}:/usr/sbin:/usr/bin:/sbin:/bin")
            yield folder


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What nodes need, as wheels: they reach no index."""
    folder = tmp_path_factory.mktemp("wheels")
    wheels.build([*(re.split(r"[<>=]", each)[0] for each in NEEDED.values()), "numpy"], folder)
    wheels.write(folder, "greeting", "1.0", greeting="WORD = 'hello'\n")
    return folder


def image(shelf: Path, *packages: str) -> sky.Image:
    return sky.Image(pip=packages, pip_indexes=[str(shelf)], like=None)


def waiting() -> list[Path]:
    """Return the folders in which nodes wait."""
    return [each.parent for each in of_the_user().glob("*/task")]


def test_a_cell_has_an_environment_on_each_node(login: Path, shelf: Path, tmp_path: Path) -> None:
    (tmp_path / "extra.py").write_text("WORD = 'beside the notebook'\n")
    notebook = LiveNotebook(tmp_path / "own.ipynb", PYTHONPATH=str(ROOT))
    cell = (
        f"%%sky --provider slurm --nodes 2 --plugin none --wheels {shelf} --pip greeting "
        "--gather found\nimport extra, greeting, os, sys\n"
        "found = greeting.WORD, sys.prefix, os.getcwd(), extra.WORD, os.environ['SLURMD_NODENAME']"
    )
    try:
        notebook.succeed("%load_ext jupyter_sky")
        notebook.succeed(cell)
        found = notebook.value("found")
        assert [each[-1] for each in found] == ["n1", "n2"]
        word, prefix, folder, beside, _ = found[0]
        assert (word, beside) == ("hello", "beside the notebook")
        assert prefix.startswith(f"{login}/.cache/jupyter-sky/envs/")
        assert folder.startswith(f"{login}/jupyter-sky/")
        assert not (login / ".cache").exists(), "it was made at the login node"
        assert not waiting() and not without_owner(), "the keys of the agents are still there"
        # A kernel that starts again finds the cluster, and what its nodes do not share.
        notebook.restart()
        notebook.succeed("%load_ext jupyter_sky\nimport extra")
        assert "beside" in notebook.succeed("%%sky\nprint(extra.WORD)").stdout
        assert "nothing is left running" in notebook.succeed("%sky down").stdout
    finally:
        notebook.close()
    until(lambda: not queue())


def test_a_laptop_makes_nodes_ready_behind_a_login_node(
    lab: Lab, shelf: Path, tmp_path: Path
) -> None:
    home = lab.hosts[0].home
    hide = ["unshare", "--mount", "sh", "-c", HIDE.format(hidden=f"'{ROOT}'"), "sh"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HOME", str(home))
        hidden = login_host(lab, tmp_path / "home", on_nodes=hide)
        with hidden as host:
            said: list[str] = []
            provider = Slurm(login=host.name)
            cluster = start("far", said, provider, image=image(shelf, "greeting"), nodes=2)
            try:
                cells = Cells(cluster)
                cells.run("import greeting, os, sys")
                found = cells.ask("greeting.WORD, sys.prefix, os.environ['SLURMD_NODENAME']")
                assert [each[::2] for each in found] == [("hello", "n1"), ("hello", "n2")]
                assert found[0][1].startswith(f"{home}/.cache/jupyter-sky/envs/")
                assert "have homes of their own" in str(said)
                assert not waiting()
            finally:
                cluster.down()
            until(lambda: not queue())
            assert not [*(home / ".cache" / "jupyter-sky" / "slurm").iterdir()]


def test_nodes_of_the_own_job_get_one_too(
    login: Path, shelf: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = ["salloc", "--no-shell", "--nodes=2", "--job-name=mine"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    [job] = re.findall(r"allocation (\d+)", said)
    monkeypatch.setenv("SLURM_JOB_ID", job)
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    try:
        cluster = start("inside", image=image(shelf, "greeting"), nodes=2)
        try:
            cells = Cells(cluster)
            cells.run("import greeting, os")
            assert cells.ask("os.environ['SLURM_JOB_ID'], greeting.WORD") == [(job, "hello")] * 2
            assert queue() == "mine RUNNING None", "another job was submitted"
            # Another node is made ready as the first ones were.
            cluster.scale(1)
            cluster.scale(2)
            cells.run("import greeting")
            assert cells.ask("greeting.WORD") == ["hello", "hello"]
        finally:
            cluster.down()
    finally:
        subprocess.run(["scancel", job], check=True)
    until(lambda: not queue())


def test_what_a_node_lacks_is_said(login: Path, shelf: Path) -> None:
    said = r"job \d+, n1: \S+ has no moon: `%pip download .* moon` gets it; n2: "
    with pytest.raises(SkyError, match=said):
        start("lost", image=image(shelf, "moon"), nodes=2)
    until(lambda: not queue() and not waiting())
    with pytest.raises(SkyError, match="has no .*: install `jupyter-sky` there"):
        start("lost", provider=Slurm(python="/usr/bin/python3"))
    until(lambda: not queue() and not waiting())
    assert not without_owner()


def test_stop_ends_it_while_nodes_are_made_ready(login: Path, shelf: Path) -> None:
    said: list[str] = []
    stopping = threading.Thread(target=interrupt_when, args=[lambda: "making Python" in str(said)])
    stopping.start()
    with pytest.raises(KeyboardInterrupt):
        start("patient", said, image=image(shelf, "numpy"))
    stopping.join()
    assert registry.find("patient") is None
    until(lambda: not queue() and not waiting())
    assert not without_owner()


KERNEL = """\
import os, sys
from pathlib import Path
from tests.cluster.cells import Cells
from tests.providers.slurm.test_own_homes import Slurm, image, start

class Killing(list):
    def append(self, text):
        if sys.argv[1] in text:
            os.kill(os.getpid(), 9)

provider = Slurm(grace=float(sys.argv[3]))
cluster = start("left", Killing(), provider, image=image(Path(sys.argv[2]), "greeting"), nodes=2)
cells = Cells(cluster)
cells.run("import greeting, os")
print(cells.ask("os.environ['SLURM_JOB_ID'], greeting.WORD"))
cluster.down()
"""


def kernel(words: str, shelf: Path, grace: float) -> subprocess.CompletedProcess[str]:
    """Start a cluster in a process that is killed when it says these words."""
    command = [sys.executable, "-c", KERNEL, words, str(shelf), str(grace)]
    return subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)


def test_nodes_that_nobody_makes_ready_end_their_job(login: Path, shelf: Path) -> None:
    done = kernel("homes of their own", shelf, grace=6.0)
    assert done.returncode == -signal.SIGKILL
    until(lambda: not queue() and not waiting())
    # What the kernel has left at the login node, with the keys of the agents, goes as well.
    assert without_owner()
    [found], _ = cloud_resources.find()
    assert found.is_orphaned
    found.remove()
    assert not without_owner()


def test_a_kernel_that_starts_again_makes_nodes_ready_that_wait(login: Path, shelf: Path) -> None:
    assert kernel("starting", shelf, grace=600.0).returncode == -signal.SIGKILL
    listed = ["squeue", "--noheader", "--format=%i"]
    job = subprocess.run(listed, capture_output=True, text=True, check=True).stdout.strip()
    done = kernel("~ never ~", shelf, grace=600.0)
    assert done.stdout.strip() == f"{[(job, 'hello')] * 2}"
    until(lambda: not queue() and not waiting())
    assert not without_owner()
