"""Environment variables that the notebook has set since the cluster is there.

``os.environ["HF_HOME"] = ...`` and ``%env`` are meant for the next cell, wherever it runs. What the
notebook had before is not sent: ranks on this computer have inherited it, and other machines have
an environment of their own. Nor are variables that say where a process is, or how it gets there,
which differ on purpose, and the credentials that machines are rented with, which stay here.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.serialization.process.setting import ProcessSetting
from jupyter_sky.transport.templates.inherited import OF_NOTEBOOK

_OF_THE_PROCESS = OF_NOTEBOOK | frozenset(
    {"PATH", "HOME", "PWD", "OLDPWD", "USER", "LOGNAME", "HOSTNAME", "SHELL", "SHLVL", "_"}
    | {"TMPDIR", "TEMP", "TMP", "DISPLAY", "TERM", "COLUMNS", "LINES", "MPLBACKEND", "IPYTHONDIR"}
    | {"VIRTUAL_ENV", "LD_LIBRARY_PATH", "LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "COMPUTE_POOL"}
    | {"MASTER_ADDR", "MASTER_PORT", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"}
    | {"GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"}
)
_PREFIXES = (
    *("AWS_", "CONDA_", "GROUP_", "JPY_", "JUPYTER_", "NVIDIA_", "PYDEVD_", "PYTEST_", "PYTHON"),
    *("ROLE_", "SKYPILOT_", "SLURM_", "SSH_", "SUDO_", "TORCHELASTIC_", "XDG_"),
)

_CACHES = frozenset({"TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"})
"""What ``torch.compile`` sets here to its default, with the name of this machine's user in it."""


@dataclass(frozen=True)
class EnvironmentChanges(ProcessSetting):
    """Variables that were set or removed.

    Attributes
    ----------
    variables
        Their values, by name; ``None`` for one that was removed.
    asked
        Those that cells have asked for with ``--variable``: also where a rank's start has set it.
    """

    variables: Mapping[str, str | None]
    asked: Mapping[str, str]

    def install(self, store: Path) -> None:
        """Set and remove what was not before; what the start has set, only where it is asked."""
        changed = {name: value for name, value in self.variables.items() if name not in _own}
        changed |= self.asked
        for name, value in changed.items():
            if _installed.get(name, _NEVER) == value:
                continue  # if it is another value by now, a cell here has set it
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _installed.update(changed)


class EnvironmentWatch:
    """Finds out what was changed in the environment of this process since it was made."""

    def __init__(self) -> None:
        self._before = dict(os.environ)
        self._seen: dict[object, object] = {}
        self._changed: dict[str, str | None] = {}

    def changed(self) -> Mapping[str, str | None]:
        """Return what was set or removed, or was so once; in the order of the names."""
        # It is asked before each run, and decoding all variables takes as long as much of that.
        raw = vars(os.environ)["_data"]
        if raw != self._seen:
            self._seen = dict(raw)
            now = dict(os.environ)
            self._changed = {
                name: now.get(name)
                for name in sorted(self._before.keys() | now.keys() | self._changed.keys())
                if (name in self._changed or now.get(name) != self._before.get(name))
                and not (name in _OF_THE_PROCESS or name.startswith(_PREFIXES))
                and not (name in _CACHES and _is_default_cache(now.get(name)))
            }
        return self._changed


def _is_default_cache(folder: str | None) -> bool:
    """Return whether torch would have its cache in a folder if nobody said where."""
    default = os.path.join(tempfile.gettempdir(), "torchinductor_")  # noqa: PTH118
    return folder is not None and folder.startswith(default)


def protect(names: Iterable[str]) -> None:
    """Keep variables of this process, a rank, as they are: its start has set them."""
    _own.update(names)


_own: set[str] = set()
_installed: dict[str, str | None] = {}
_NEVER = object()
