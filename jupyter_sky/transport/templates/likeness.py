"""What two processes must have in common for a fork of one to replace the other."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from jupyter_sky.transport.templates.import_path import with_packages

_OF_THE_SESSION = re.compile(
    r"(JPY|JUPYTER|IPYTHON|PYTEST|SSH|VSCODE|XDG_SESSION|DBUS|TERM|SYSTEMD|WINDOW)_?.*"
    r"|SHLVL|(OLD)?PWD|COLUMNS|LINES|PYTHONPATH|_"
    r"|TORCHINDUCTOR_CACHE_DIR|KMP_(DUPLICATE_LIB_OK|INIT_AT_FORK)"
)
"""Variables that tell who started a process, and not how it computes.

torch sets one of the last three itself, in a kernel that has compiled something, and scikit-learn
the others where it is imported. Of the import path, what is found there counts.
"""

_OF_THE_PROCESS = (
    *("Umask", "Uid", "Gid", "Groups", "CapPrm", "CapBnd", "NoNewPrivs", "Seccomp"),
    *("Cpus_allowed", "Mems_allowed"),
)
"""What a process inherits of its parent, by its names in ``/proc/self/status``."""


def likeness(spec: Mapping[str, Any], env: Mapping[str, str]) -> str:
    """Return a key that is the same for processes that are interchangeable.

    They have the same interpreter, packages and environment variables during imports, and the same
    rights, limits and namespaces, which a process inherits from its parent. Only the process itself
    can check whether its modules would be found in the same places, and whether their files are
    still the same.

    Parameters
    ----------
    spec
        The modules to import (``preload``), and the folders to import from first (``sys_path``), as
        in ``spec.json``.
    env
        The environment variables that the process starts with.
    """
    parts = {
        "python": [sys.executable, sys.version, __file__],
        "imports": [spec["preload"], with_packages(spec["sys_path"], env)],
        "env": sorted(pair for pair in env.items() if not _OF_THE_SESSION.fullmatch(pair[0])),
        "namespaces": [str(each.readlink()) for each in sorted(Path("/proc/self/ns").iterdir())],
        "cgroup": Path("/proc/self/cgroup").read_text(),
        "status": [
            line
            for line in Path("/proc/self/status").read_text().splitlines()
            if line.startswith(_OF_THE_PROCESS)
        ],
        "limits": Path("/proc/self/limits").read_text(),
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "root": str(Path("/proc/self/root").readlink()),
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
