"""Nothing that a benchmark starts outlives it: every descendant is ended by its id.

Agents and the daemons of peers leave their parent on purpose. With this process as the reaper of
its subtree they stay its descendants all the same.
"""

from __future__ import annotations

import ctypes

import psutil

_PR_SET_CHILD_SUBREAPER = 36
_TO_END = 5.0
_ENDS_BY_ITSELF = "jupyter-sky template"  # within a minute


def adopt_orphans() -> None:
    """Become the parent of descendants that lose theirs."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_descendants() -> list[str]:
    """Kill what is still there and return the command lines of those that ran."""
    left: list[str] = []
    # A killed process hands its children over to us, so there can be more after each turn.
    while children := psutil.Process().children(recursive=True):
        for child in children:
            try:
                if child.status() != psutil.STATUS_ZOMBIE:
                    command = " ".join(child.cmdline()) or child.name()
                    if not command.startswith(_ENDS_BY_ITSELF):
                        left.append(command)
                    child.kill()
            except psutil.NoSuchProcess:
                continue
        _, alive = psutil.wait_procs(children, timeout=_TO_END)
        if alive:
            break
    return left
