"""The jupyter_sky in the environment of a kernel: the magics run there, not in the server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory.kernel_files import KernelFile
from jupyter_sky.server.cli_process import capture
from jupyter_sky.server.schema import Environment

_PRINT_VERSION = "import jupyter_sky; print(jupyter_sky.__version__)"
_TIMEOUT = 20.0  # seconds
_PYTHON = re.compile(r"python[\d.]*(\.exe)?", re.IGNORECASE)


async def describe(spec: Any, report: KernelFile | None) -> Environment:
    """Return which jupyter_sky a kernel has, and what to do if it is missing or unsuitable.

    Parameters
    ----------
    spec
        The kernel's `jupyter_client.kernelspec.KernelSpec`.
    report
        The kernel's report, if it has loaded jupyter_sky.
    """
    if report is not None:
        return _answer(True, report.jupyter_sky, _mismatch(report.jupyter_sky))
    if str(spec.language).lower() != "python":
        note = f"This notebook is in {spec.language[:40]}: only Python cells run on clusters."
        return _answer(False, None, note)
    python = _interpreter(spec.argv)
    if python is None:
        note = "Type `%load_ext jupyter_sky` in this notebook to use clusters."
        return _answer(False, None, note)
    version = await asyncio.to_thread(_version, python)
    if version is None:
        note = (
            f"The environment of this notebook ({python}) has no jupyter_sky: "
            f"install the server's version, {__version__}, with `%pip install` in a cell."
        )
        return _answer(False, None, note)
    note = "Type `%load_ext jupyter_sky` in this notebook to use clusters."
    return _answer(False, version, " ".join(filter(None, [_mismatch(version), note])))


def _answer(loaded: bool, version: str | None, note: str) -> Environment:
    return {"loaded": loaded, "jupyter_sky": version, "note": note}


def _mismatch(version: str) -> str:
    if version == __version__:
        return ""
    return (
        f"This notebook has jupyter_sky {version}, and the server {__version__}: "
        "install the same in both."
    )


def _interpreter(argv: list[str]) -> str | None:
    """Return the interpreter that starts a kernel; ``None`` if its command does not show one."""
    if not argv or not _PYTHON.fullmatch(Path(argv[0]).name):
        return None
    # For a bare name like `python`, Jupyter uses its own interpreter.
    return sys.executable if Path(argv[0]).name == argv[0] else argv[0]


def _version(python: str) -> str | None:
    """Return the version of jupyter_sky that an interpreter imports; this blocks."""
    if python == sys.executable:
        return __version__
    try:
        # In its own folder, so that a `jupyter_sky` in the server's working directory is not
        # imported.
        done = capture([python, "-c", _PRINT_VERSION], _TIMEOUT, cwd=Path(python).parent)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.fullmatch(r"[\w.+!-]{1,60}", version) else None
