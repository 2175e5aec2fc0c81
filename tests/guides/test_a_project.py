"""The guide to a whole project runs, on hosts of the lab.

``python -m tests.guides.test_a_project`` makes the outputs that it is saved with.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient
from traitlets.config import Config

from tests.guides import guides
from tests.guides.guides import code, text_of
from tests.installed import skip_without
from tests.lab import Lab
from tests.paths import NOTEBOOKS, ROOT
from tests.providers.ssh.conftest import client
from tests.waiting import PATIENCE

__all__ = ["client"]

skip_without("tensorboard")

pytestmark = pytest.mark.timeout(900)  # a whole notebook, on a machine that has other tests to do

NAME = "a-project"


def run(lab: Lab, folder: Path) -> nbformat.NotebookNode:
    """Run the guide in the folder of its project, as a user whose configuration knows the hosts."""
    shared, project = folder / "shared", folder / "project"
    for each in (shared / "labels", project):
        each.mkdir(parents=True)
    words = "zero one two three four five six seven eight nine"
    (shared / "labels" / "names.txt").write_text(words)
    hosts = [
        f"Host gpu{number}\n  HostName {host.address}\n" for number, host in enumerate(lab.hosts, 1)
    ]
    config = f"{''.join(hosts)}Host *\n  User root\n"
    (Path(os.environ["HOME"]) / ".ssh" / "config").write_text(config)
    profile = folder / "ipython" / "profile_default"
    profile.mkdir(parents=True)
    settings = f"c = get_config()\nc.Sky.python = {sys.executable!r}\n"
    (profile / "ipython_config.py").write_text(settings)
    text = (NOTEBOOKS / f"{NAME}.ipynb").read_text().replace("/shared", str(shared))
    notebook = nbformat.reads(text, as_version=4)
    metadata = dict(notebook.metadata)
    runtime = folder / "runtime"
    runtime.mkdir()
    # What Jupyter's server writes down of itself, which starts a user's kernels.
    (runtime / f"jpserver-{os.getpid()}.json").write_text('{"base_url": "/"}')
    env = {
        "IPYTHONDIR": str(profile.parent),
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    NotebookClient(
        notebook,
        timeout=PATIENCE,
        kernel_name="python3",
        coalesce_streams=True,
        record_timing=False,
        resources={"metadata": {"path": str(project)}},
        # Without it, ipykernel warns that the way to the kernel is not encrypted.
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),
    ).execute(env={**os.environ, **env})
    notebook.metadata = metadata
    written = nbformat.writes(notebook).replace(str(shared), "/shared").replace(str(project), ".")
    for number, host in enumerate(lab.hosts, 1):
        # The guide's reader has hosts of these names; those of the lab have names of their own.
        written = written.replace(host.address, f"192.0.2.{number}").replace(
            host.name, f"gpu{number}"
        )
    return nbformat.reads(written, as_version=4)


@pytest.fixture
def done(lab: Lab, client: Path, tmp_path: Path) -> nbformat.NotebookNode:
    return run(lab, tmp_path)


@pytest.mark.parametrize("fresh", [True, False], ids=["fresh", "saved"])
def test_what_it_shows(fresh: bool, request: pytest.FixtureRequest) -> None:
    notebook = request.getfixturevalue("done") if fresh else guides.saved(NAME)

    def shown(beginning: str) -> str:
        return text_of(code(notebook, beginning))

    assert "2 ranks on CPU" in shown("%sky up")
    assert "1 passed" in shown("%%sky --sh")
    training = shown("%%sky --hosts")
    assert "attempt 2 of 4 begins" in training
    assert "goes on at step 50" in training
    assert re.search(r"accuracy 0\.[89]\d", training)
    assert "`%sky get outputs` brings it here" in training
    assert "outputs" in shown("%sky get")
    assert "Port 6006 of rank 0: /jupyter-sky/forward/" in shown("%sky forward")
    assert 0 <= int(shown("hardest")) <= 9
    assert "width 64: 4,810 parameters" in shown("!jupyter sky run")
    assert "wrote alone.py" in shown("%sky export")


def test_the_saved_file_names_no_machine() -> None:
    assert guides.names_no_machine(NAME)


def main() -> None:
    """Run the guide and save it with its outputs."""
    lab = Lab.start(2)
    try:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            shutil.copytree(lab.home, folder / "home")
            os.environ.pop("SSH_AUTH_SOCK", None)
            os.environ.update(
                HOME=str(folder / "home"), JUPYTER_SKY_HOME=str(folder / "home" / "jupyter_sky")
            )
            notebook = run(lab, folder)
        nbformat.write(notebook, NOTEBOOKS / f"{NAME}.ipynb")
    finally:
        lab.stop()


if __name__ == "__main__":
    main()
