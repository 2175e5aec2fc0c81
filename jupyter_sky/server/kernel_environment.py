"""What the environment of a kernel has of jupyter_sky: the magics are there, not in the server."""

from __future__ import annotations

import asyncio
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from jupyter_sky import __version__
from jupyter_sky.cluster.inventory.kernel_files import KernelFile

_ASK = "import jupyter_sky; print(jupyter_sky.__version__)"
_WITHIN = 20.0
_PYTHON = re.compile(r"python[\d.]*(\.exe)?", re.IGNORECASE)


async def describe(spec: Any, told: KernelFile | None) -> dict[str, Any]:
    """Return what a kernel has, as the schema says.

    Parameters
    ----------
    spec
        The kernel's specification.
    told
        What it tells, if it has loaded jupyter_sky.
    """
    if told is not None:
        return _answer(True, told.jupyter_sky, _mismatch(told.jupyter_sky))
    if str(spec.language).lower() != "python":
        note = f"This notebook is in {spec.language[:40]}: only Python cells run on clusters."
        return _answer(False, None, note)
    python = _interpreter(spec.argv)
    if python is None:
        note = "Type `%load_ext jupyter_sky` in this notebook to use clusters."
        return _answer(False, None, note)
    version = await _version(python)
    if version is None:
        note = (
            f"The environment of this notebook ({python}) has no jupyter_sky: "
            f"type `%pip install jupyter-sky=={__version__}` in a cell."
        )
        return _answer(False, None, note)
    note = "Type `%load_ext jupyter_sky` in this notebook to use clusters."
    return _answer(False, version, " ".join(filter(None, [_mismatch(version), note])))


def _answer(loaded: bool, version: str | None, note: str) -> dict[str, Any]:
    return {"loaded": loaded, "jupyter_sky": version, "note": note}


def _mismatch(version: str) -> str:
    if version == __version__:
        return ""
    return (
        f"This notebook has jupyter_sky {version}, and the server {__version__}: "
        "install the same in both."
    )


def _interpreter(argv: list[str]) -> str | None:
    """Return the interpreter that starts a kernel, as far as its command shows one."""
    if not argv or not _PYTHON.fullmatch(Path(argv[0]).name):
        return None
    # Jupyter takes its own for these.
    return sys.executable if Path(argv[0]).name == argv[0] else argv[0]


async def _version(python: str) -> str | None:
    ask = partial(
        subprocess.run,
        [python, "-c", _ASK],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        encoding="utf-8",
        errors="replace",
        cwd=Path(python).parent,
        timeout=_WITHIN,
    )
    try:
        done = await asyncio.to_thread(ask)
    except (OSError, subprocess.TimeoutExpired):
        return None
    version = done.stdout.strip()
    return version if done.returncode == 0 and re.fullmatch(r"[\w.+!-]{1,60}", version) else None
