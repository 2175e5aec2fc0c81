"""How a notebook's cluster is called: after the notebook, so that a restarted kernel finds it."""

from __future__ import annotations

import hashlib
import os
import re
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
