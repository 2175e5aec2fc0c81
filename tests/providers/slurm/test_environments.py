"""What nodes run: modules, conda environments and containers.

Environment modules are real here; conda and Apptainer are stand-ins, written from what their
documentation says of the commands that are used: neither is among the packages of the tests.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.slurm.provider import Slurm
from tests.cluster.cells import Cells
from tests.providers.slurm.test_provider import queue, start
from tests.waiting import until

CONDA = """\
#!/bin/sh
test "$*" = "shell.bash hook" || exit 1
cat <<'HOOK'
conda() {
    test -d "{folder}/envs/$2" || { echo "EnvironmentNameNotFound: $2" >&2; return 1; }
    export CONDA_DEFAULT_ENV="$2" PATH="{folder}/envs/$2/bin:$PATH"
}
HOOK
"""

APPTAINER = """\
#!/bin/sh
test "$1 $2 $3" = "--silent exec --bind" || exit 1
image=$5
test -f "$image" || { echo "FATAL: could not open image $image" >&2; exit 255; }
shift 5
PATH="{folder}/inside/bin:$PATH" APPTAINER_CONTAINER="$image" "$@"
# What is mounted for a container goes with the command that it was started for.
touch "{folder}/ended"
"""

PYTHON = """\
#!/bin/sh
exec {python} "$@"
"""


@pytest.fixture
def folder(slurm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where stand-ins are, which are found as commands."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    return tmp_path


def program(path: Path, text: str, **words: object) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    for name, word in words.items():
        text = text.replace(f"{{{name}}}", str(word))
    path.write_text(text)
    path.chmod(0o755)


def test_nodes_load_modules(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not Path("/etc/profile.d/modules.sh").exists():
        pytest.skip("environment-modules is not installed")
    (folder / "tool").mkdir()
    (folder / "tool" / "1.2").write_text("#%Module\nsetenv TOOL_ROOT /opt/tool-1.2\n")
    monkeypatch.setenv("MODULEPATH", str(folder))
    cluster = start("tools", provider=Slurm(modules=("tool/1.2",)))
    try:
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['TOOL_ROOT']") == ["/opt/tool-1.2"]
    finally:
        cluster.down()
    with pytest.raises(SkyError, match=r"FAILED, .*Unable to locate a modulefile for 'moon'"):
        start("lost", provider=Slurm(modules=("moon",)))
    until(lambda: not queue())


def test_nodes_run_in_a_conda_environment(folder: Path) -> None:
    program(folder / "conda", CONDA, folder=folder)
    program(folder / "envs" / "train" / "bin" / "python", PYTHON, python=sys.executable)
    cluster = start("conda", provider=Slurm(conda="train"), nodes=2)
    try:
        cells = Cells(cluster)
        cells.run("import os")
        assert cells.ask("os.environ['CONDA_DEFAULT_ENV']") == ["train", "train"]
    finally:
        cluster.down()
    with pytest.raises(SkyError, match="FAILED, EnvironmentNameNotFound: moon"):
        start("lost", provider=Slurm(conda="moon"))
    # One that has nothing of ours.
    bare = [sys.executable, "-m", "venv", "--without-pip", str(folder / "envs" / "bare")]
    subprocess.run(bare, check=True)
    with pytest.raises(SkyError, match="install `jupyter-sky` into"):
        start("lost", provider=Slurm(conda="bare"))
    until(lambda: not queue())


def test_nodes_run_in_a_container(folder: Path) -> None:
    with pytest.raises(SkyError, match="neither apptainer nor singularity is on this node"):
        start("lost", provider=Slurm(container="torch.sif"))
    program(folder / "apptainer", APPTAINER, folder=folder)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "inside"], check=True)
    [library] = (folder / "inside" / "lib").glob("python*/site-packages")
    (library / "tests.pth").write_text(sysconfig.get_path("purelib") + "\n")
    image = folder / "torch.sif"
    with pytest.raises(SkyError, match="could not open image .*torch.sif"):
        start("lost", provider=Slurm(container=str(image)))
    image.touch()
    cluster = start("boxed", provider=Slurm(container=str(image)))
    try:
        cells = Cells(cluster)
        cells.run("import os, shutil")
        assert cells.ask("os.environ['APPTAINER_CONTAINER']") == [str(image)]
        assert cells.ask("shutil.which('python3')") == [str(folder / "inside" / "bin" / "python3")]
        assert not (folder / "ended").exists()
    finally:
        cluster.down()
    until(lambda: not queue())
