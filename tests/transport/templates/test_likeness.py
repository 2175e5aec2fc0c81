"""When a process can stand in for another."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.transport.templates.likeness import likeness

SPEC: dict[str, Any] = {"preload": ["json"], "sys_path": ["/a"], "python_path": None}
ENV = {"PATH": "/bin", "JPY_SESSION_NAME": "one", "TERM_SESSION_ID": "1"}


@pytest.mark.parametrize(
    ("changed", "same"),
    [
        ({"JPY_SESSION_NAME": "two"}, True),
        ({"JUPYTER_SKY_HOME": "/b"}, True),
        ({"IPYTHONDIR": "/b", "TORCHINDUCTOR_CACHE_DIR": "/b"}, True),
        ({"KMP_INIT_AT_FORK": "FALSE", "KMP_DUPLICATE_LIB_OK": "True"}, True),
        ({"SHLVL": "3", "_": "/bin/env", "TERM_SESSION_ID": "2"}, True),
        ({"PATH": "/usr/bin"}, False),
        ({"OMP_NUM_THREADS": "1"}, False),
    ],
)
def test_variables_of_the_session_make_no_difference(changed: dict[str, str], same: bool) -> None:
    assert (likeness(SPEC, {**ENV, **changed}) == likeness(SPEC, ENV)) is same


def test_what_is_imported_makes_a_difference() -> None:
    assert likeness({**SPEC, "preload": ["json", "re"]}, ENV) != likeness(SPEC, ENV)


def test_a_folder_makes_a_difference_where_packages_are_installed(tmp_path: Path) -> None:
    path = str(tmp_path)
    assert likeness({**SPEC, "sys_path": [path]}, ENV) == likeness(SPEC, ENV)
    assert likeness(SPEC, {**ENV, "PYTHONPATH": path}) == likeness(SPEC, ENV)
    (tmp_path / "six-1.16.0.dist-info").mkdir()
    assert likeness({**SPEC, "sys_path": [path]}, ENV) != likeness(SPEC, ENV)
    assert likeness(SPEC, {**ENV, "PYTHONPATH": path}) != likeness(SPEC, ENV)


@pytest.mark.parametrize(
    "inherited",
    [
        "os.umask(0o27)",
        "os.nice(1 if os.nice(0) < 19 else -1)",  # the tests may be as nice as can be
        "resource.setrlimit(7, (100, 100))",
    ],
)
def test_what_a_process_inherits_makes_a_difference(inherited: str) -> None:
    def of_a_child(before: str) -> str:
        imports = (
            "import os, resource\nfrom jupyter_sky.transport.templates.likeness import likeness"
        )
        code = f"{imports}\n{before}\nprint(likeness({SPEC}, {ENV}))"
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout

    assert of_a_child(inherited) != of_a_child("pass") == of_a_child("pass") != ""
