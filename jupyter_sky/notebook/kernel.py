"""This kernel: its notebook, its connection file, and whether it is ending."""

from __future__ import annotations

import asyncio
import hashlib
import os
import re
import time
from pathlib import Path
from typing import Any

from IPython.core.getipython import get_ipython
from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.api.display.wording import has_magics
from jupyter_sky.errors import as_in_command

_END_WITHIN = 0.15
_SLICE = 0.01


def notebook_path(shell: InteractiveShell) -> str:
    """Return the path of the kernel's notebook; empty if there is none, or it is not known."""
    # Jupyter Server sets the variable, and VS Code the name.
    return str(os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__") or "")


def connection_file(shell: InteractiveShell) -> str:
    """Return the path of Jupyter's connection file; empty if the shell is not a kernel's."""
    config = getattr(getattr(shell, "kernel", None), "config", {}).get("IPKernelApp", {})
    return str(config.get("connection_file") or "" if config else "")


def has_running_loop() -> bool:
    """Return whether an event loop runs this thread's cells."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True


def cell_id(shell: InteractiveShell) -> str | None:
    """Return the id of the running cell in the notebook's file, if the page sent it."""
    kernel: Any = getattr(shell, "kernel", None)
    if not hasattr(kernel, "get_parent"):
        return None
    found = kernel.get_parent("shell").get("metadata", {}).get("cellId")
    return found if isinstance(found, str) else None


def program_words(shell: InteractiveShell) -> tuple[str, ...] | None:
    """Return name and arguments of the program of ``jupyter sky run``; ``None`` in a notebook.

    They are empty for the other commands of a terminal.
    """
    return getattr(shell, "words", None)


def typed_command() -> str:
    """Return how commands begin here: ``%sky``, or ``jupyter sky`` in a terminal."""
    return "%sky" if get_ipython() is None or has_magics() else "jupyter sky"


def as_typed(sentence: str) -> str:
    """Return a sentence with commands like ``%sky down`` as they are typed here."""
    return sentence if typed_command() == "%sky" else as_in_command(sentence)


def program_file(shell: InteractiveShell) -> Path | None:
    """Return the script that ``jupyter sky run`` runs; ``None`` for a notebook."""
    return getattr(shell, "script", None)


def lines_above(shell: InteractiveShell) -> int:
    """Return how many lines of its script are above the running cell; in a notebook, 0."""
    return getattr(shell, "above", 0)


def cluster_name(shell: InteractiveShell) -> str:
    """Return the name of the notebook's own cluster.

    It stays the same when the kernel restarts. It differs for notebooks of the same name in
    different folders, and for kernels without a known notebook.
    """
    if program := getattr(shell, "program", ""):
        return f"{_plain(program)}-{os.getpid()}"  # of `jupyter sky run`
    if notebook := notebook_path(shell):
        return f"{_plain(Path(notebook).stem)}-{_digest(notebook)}"
    file = connection_file(shell)
    return f"notebook-{_digest(file)}" if file else f"ipython-{os.getpid()}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:40] or "notebook"


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=2).hexdigest()


def is_ending(shell: InteractiveShell) -> bool:
    """Return whether an interrupt was the first sign of this kernel's end.

    Jupyter interrupts a kernel before it restarts or ends it, and immediately afterwards asks it to
    end or kills it. A run outlives its kernel: only Stop stops it, so the two must be
    distinguished.

    Moments are counted, and not what the clock says: where this process stood still, the request
    has come meanwhile, and its thread needs some time to read it.
    """
    if not hasattr(shell, "kernel"):
        return False
    for _ in range(round(_END_WITHIN / _SLICE)):
        if shell.exit_now:
            break
        time.sleep(_SLICE)
    return bool(shell.exit_now)
