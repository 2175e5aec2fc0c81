"""What ``pip install`` of the wheel brings into an environment: commands, and the extension."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.version import Version

from jupyter_sky import __version__
from tests.installed import skip_without
from tests.paths import ROOT


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A fresh environment with the wheel; what we depend on is that of the tests."""
    pytest.importorskip("hatchling", reason="hatchling is not installed")
    folder = tmp_path_factory.mktemp("install")
    env = {**os.environ, "HATCH_BUILD_NO_HOOKS": "true"}
    wheel = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(wheel, cwd=ROOT, env=env, check=True, capture_output=True)
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "venv"], check=True)
    here = {"base": str(folder / "venv"), "platbase": str(folder / "venv")}
    site = Path(sysconfig.get_path("purelib", vars=here))
    (site / "tests.pth").write_text(sysconfig.get_path("purelib"))
    [built] = folder.glob("*.whl")
    install = ["-m", "pip", "install", "--quiet", "--no-deps", "--no-index", str(built)]
    python = folder / "venv" / "bin" / "python"
    subprocess.run([python, *install], check=True, env=clean())
    yield folder / "venv"


def clean() -> dict[str, str]:
    """The variables of a shell that knows nothing of this checkout."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def says(environment: Path, *command: str) -> str:
    """What a command of the environment says, on both streams."""
    done = subprocess.run(
        [environment / "bin" / "python", *command],
        capture_output=True,
        text=True,
        env=clean(),
        cwd=environment,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_the_extension_is_enabled_at_once(environment: Path) -> None:
    said = says(environment, "-m", "jupyter_server.extension.serverextension", "list")
    assert "jupyter_sky.server" in said
    line = next(line for line in said.splitlines() if "jupyter_sky.server" in line)
    assert "enabled" in line
    validated = said[said.index("Validating jupyter_sky.server") :]
    assert "OK" in validated.splitlines()[0] + validated.splitlines()[1]


def test_jupyterlab_has_the_sidebar_at_once(environment: Path) -> None:
    skip_without("jupyterlab")
    said = says(environment, "-m", "jupyterlab.labextensions", "list")
    line = next(line for line in said.splitlines() if "jupyter-sky" in line)
    [version] = re.findall(r" v(\S+) ", line)
    assert Version(version) == Version(
        __version__
    )  # npm writes 0.2.0-dev0 where Python writes .dev0
    assert "enabled" in line and "OK" in line


def test_the_schema_is_in_the_wheel(environment: Path) -> None:
    code = "from jupyter_sky.server import schema; schema.check('ActionResult', {'said': ''})"
    said = says(environment, "-c", f"{code}; import jupyter_sky; print(jupyter_sky.__file__)")
    assert Path(said.strip()).is_relative_to(environment), "what is looked at is not the wheel's"


def test_the_command_is_there(environment: Path) -> None:
    command = environment / "bin" / "jupyter-sky"
    said = subprocess.check_output([command, "--version"], text=True, env=clean())
    assert said == f"{__version__}\n"


def test_the_magics_need_no_server(environment: Path) -> None:
    code = (
        "import sys\nsys.modules |= dict.fromkeys(['jupyter_server', 'jsonschema', 'tornado'])\n"
        "from jupyter_sky.notebook import cli, extension"
    )
    says(environment, "-c", code)
