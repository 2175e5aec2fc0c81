"""The tests of the view, in Node."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import LABEXTENSION


def test_the_view_passes_its_own_tests() -> None:
    if not (LABEXTENSION / "node_modules").exists():
        pytest.skip("needs its packages: `make views`")
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    node = shutil.which("node", path=path)
    assert node, "Node is missing: `make views` installs it"
    ran = subprocess.run(
        [node, str(LABEXTENSION / "tests" / "all.ts")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
