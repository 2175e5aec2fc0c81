"""What `pip install jupyter-sky` brings to JupyterLab, in a fresh environment."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
from pathlib import Path

import pytest

import jupyter_sky

ROOT = Path(__file__).parents[2]


def say(*command: str | Path, **environment: str) -> str:
    """Run a command and return what it says, on either stream."""
    ran = subprocess.run(
        command,
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=400,
    )
    assert ran.returncode == 0, ran.stdout
    return ran.stdout


@pytest.mark.timeout(500)  # it builds a wheel from nothing, and installs JupyterLab
def test_the_wheel_is_all_that_jupyterlab_needs(tmp_path: Path) -> None:
    pip = (sys.executable, "-m", "pip")
    say(*pip, "wheel", "--quiet", "--no-deps", f"--wheel-dir={tmp_path}", ROOT)
    [wheel] = tmp_path.glob("*.whl")
    venv.create(tmp_path / "venv")
    bare = tmp_path / "venv" / "bin"
    say(*pip, f"--python={bare / 'python'}", "install", "--quiet", wheel, "jupyterlab")

    own = {"HOME": str(tmp_path), "PYTHONPATH": "", "PYTHONNOUSERSITE": "1"}
    listed = say(bare / "jupyter", "labextension", "list", **own)
    [line] = [line for line in listed.splitlines() if "jupyter-sky" in line]
    assert f"v{jupyter_sky.__version__}" in line
    assert "enabled" in line and "OK" in line
    servers = say(bare / "jupyter", "server", "extension", "list", **own)
    assert f"jupyter_sky.server {jupyter_sky.__version__}" in servers
    assert "OK" in servers.partition("jupyter_sky.server")[2]


def test_python_and_javascript_have_one_version() -> None:
    package = json.loads((ROOT / "labextension" / "package.json").read_text())
    assert package["version"] == jupyter_sky.__version__
