"""What importing the package and loading the extension must not drag in; and Ctrl-C meanwhile."""

from __future__ import annotations

import ast
import importlib
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.imports import import_whole
from tests.installed import skip_without
from tests.paths import ROOT
from tests.waiting import until

NODE_FREE = {"boto3", "numpy", "paramiko", "torch"}
ELSEWHERE = {f"jupyter_sky.providers.{name}.provider" for name in ("aws", "slurm", "ssh")}
OF_NOTEBOOKS = {"jupyter_sky.notebook.extension", "jupyter_sky.notebook.programs.shell"}
"""What `%load_ext` brings, and `jupyter sky run`, which has a whole shell."""
ROOT_FREE = NODE_FREE | {"IPython", "anywidget", "ipywidgets"}
COLLECTION_FREE = {"boto3", "dask", "distributed", "jax", "keras", "moto", "torch", "transformers"}
SCRIPTS = {"benchmarks/cases/workloads/ddp.py", "benchmarks/peers/dask.py", "gpu/checks/ddp.py"}
"""Files of the tests that only processes of their own run."""


def modules_after(code: str) -> set[str]:
    """The modules that a fresh interpreter has once it has run `code`."""
    report = "import json, sys; print(json.dumps([*sys.modules]), file=sys.__stdout__)"
    ran = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    return set(json.loads(ran.stdout.splitlines()[-1]))


def test_import_of_the_package_is_cheap() -> None:
    loaded = modules_after("import jupyter_sky")
    assert "jupyter_sky" in loaded
    assert not loaded & ROOT_FREE


def test_the_package_can_be_imported_on_windows() -> None:
    """Notebooks may be there, although nodes are not."""
    modules_after(
        "import asyncio, ctypes, subprocess, sys\n"  # which are not the same there
        "import blake3, cloudpickle, psutil\n"
        "ctypes.CDLL = None\n"
        "for each in ('fcntl', 'pwd', 'resource', 'termios'): sys.modules[each] = None\n"
        "import jupyter_sky\n"
        "for each in jupyter_sky.__all__: getattr(jupyter_sky, each)"
    )


def test_loading_the_extension_brings_no_framework_and_no_cloud() -> None:
    loaded = modules_after(
        "from IPython.core.interactiveshell import InteractiveShell\n"
        "shell = InteractiveShell()\n"
        "shell.run_line_magic('load_ext', 'jupyter_sky')\n"
        "assert 'sky' in shell.magics_manager.magics['cell'], 'the magic is not there'"
    )
    assert not loaded & NODE_FREE
    assert not loaded & ELSEWHERE


def test_a_command_brings_nothing_for_elsewhere_or_for_notebooks(tmp_path: Path) -> None:
    loaded = modules_after(
        "import os, sys\n"
        f"os.environ['JUPYTER_SKY_HOME'] = {str(tmp_path)!r}\n"
        "from jupyter_sky.notebook import cli\n"
        "assert cli.main(['status']) == 0"
    )
    assert not loaded & (NODE_FREE | ELSEWHERE)
    assert not loaded & OF_NOTEBOOKS


def test_the_server_extension_brings_nothing_that_reaches_machines() -> None:
    skip_without("jupyter_server")
    loaded = modules_after("import jupyter_sky.server.handlers")
    assert not loaded & (NODE_FREE | {"anywidget", "ipywidgets"})


def test_collecting_tests_brings_no_framework_and_no_cloud() -> None:
    found = [
        f"{path}:{statement.lineno}"
        for path in (ROOT / "tests").rglob("*.py")
        if str(path.relative_to(ROOT / "tests")) not in SCRIPTS
        for statement in ast.parse(path.read_text()).body
        if _brings(statement) & COLLECTION_FREE
    ]
    assert found == []  # `on_first_use` and `skip_without` of tests/installed.py import nothing


def _brings(statement: ast.stmt) -> set[str]:
    """The top-level modules that a statement of a file imports, or skips the file without."""
    if isinstance(statement, ast.Import):
        return {each.name.partition(".")[0] for each in statement.names}
    if isinstance(statement, ast.ImportFrom):
        return {(statement.module or "").partition(".")[0]}
    value = getattr(statement, "value", None)
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "pytest.importorskip":
        return {str(ast.literal_eval(value.args[0])).partition(".")[0]}
    return set()


@pytest.fixture
def library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A library that says when half of it is imported, and then waits for a file."""
    name = f"library_{uuid.uuid4().hex}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").write_text(
        f"import {name}.first, {name}.second\nvalue = {name}.first.value\n"
    )
    (tmp_path / name / "first.py").write_text("value = 1\n")
    (tmp_path / name / "second.py").write_text(
        "import pathlib, time\n"
        f"pathlib.Path({str(tmp_path / 'half')!r}).touch()\n"
        f"while not pathlib.Path({str(tmp_path / 'go')!r}).exists(): time.sleep(0.01)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    return name


def press_ctrl_c(folder: Path, during: Callable[[], object]) -> None:
    """Press Ctrl-C while half of the library is imported, and let the other half follow."""

    def press() -> None:
        until((folder / "half").exists)
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        (folder / "go").touch()

    pressing = threading.Thread(target=press)
    pressing.start()
    with pytest.raises(KeyboardInterrupt):
        during()
        pressing.join()
    pressing.join()


def test_a_library_is_whole_after_ctrl_c(library: str, tmp_path: Path) -> None:
    press_ctrl_c(tmp_path, lambda: import_whole(library))
    assert importlib.import_module(library).value == 1


def test_what_cannot_be_imported_is_said_as_by_python(library: str) -> None:
    with pytest.raises(ModuleNotFoundError, match=f"No module named '{library}_of_others'"):
        import_whole("sys", f"{library}_of_others")
    assert f"{library}_of_others" not in sys.modules
