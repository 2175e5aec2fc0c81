"""This kernel: the notebook that it belongs to, and whether it is about to end."""

from __future__ import annotations

import hashlib
import os
import re
import time
from pathlib import Path

from IPython.core.interactiveshell import InteractiveShell


def cluster_name(shell: InteractiveShell) -> str:
    """Return the name of the notebook's own cluster.

    It stays the same when the kernel restarts. Two notebooks of one name in different folders have
    two names, and so have two kernels that no notebook is known of.
    """
    path = os.environ.get("JPY_SESSION_NAME") or shell.user_ns.get("__vsc_ipynb_file__")
    if path:
        where = Path(str(path))
        return f"{_plain(where.stem)}-{_short(str(where))}"
    connection = getattr(getattr(shell, "kernel", None), "config", {}).get("IPKernelApp", {})
    file = connection.get("connection_file") if connection else None
    return f"notebook-{_short(str(file))}" if file else f"ipython-{os.getpid()}"


def _plain(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9_-]+", "-", text).strip("-")[:40] or "notebook"


def _short(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=2).hexdigest()


_WITHIN = 0.15
_SLICE = 0.01


def is_leaving(shell: InteractiveShell) -> bool:
    """Return whether an interrupt was the first sign of this kernel's end.

    Jupyter interrupts a kernel before it restarts it or shuts it down, and says so, or kills it, at
    once after that. What runs on a cluster shall outlive the kernel: only Stop stops it.
    """
    if not hasattr(shell, "kernel"):
        return False
    deadline = time.monotonic() + _WITHIN
    while not shell.exit_now and time.monotonic() < deadline:
        time.sleep(_SLICE)
    return bool(shell.exit_now)
