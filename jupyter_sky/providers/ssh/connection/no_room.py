"""What a command says where a host has no room for files or processes, in words, with advice."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Sequence

from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.targets import Target

_DISK_IS_FULL = "No space left on device"
_QUOTA_IS_USED_UP = "Disk quota exceeded"

_NO_PROCESS = re.compile(r"[Cc]annot fork|fork: .*Resource temporarily unavailable")

_FREE = """
for place in "$HOME" "${XDG_CACHE_HOME:-$HOME/.cache}" "${TMPDIR:-/tmp}"; do
    df -kP "$place" 2>/dev/null | awk -v place="$place" 'NR == 2 { print "bytes", $4, place }'
    # Where files are not counted, there are none in all.
    df -iP "$place" 2>/dev/null | awk -v place="$place" '
        NR == 2 && $2 > 0 { print "files", $4, place }'
done
"""
_LITTLE = {"bytes": 16 * 1024, "files": 100}  # in kilobytes; ours are some hundred files


def explain(lines: Sequence[str], run: Callable[[str], str], target: Target) -> str:
    """Return what there is no room for; empty if the command failed for another reason.

    Parameters
    ----------
    lines
        What the command has printed.
    run
        Runs a script on the host.
    target
        The host.
    """
    if any(_QUOTA_IS_USED_UP in line for line in lines):
        return (
            "your quota there is used up, of bytes or of files: make room, see what `%sky gc "
            f"--hosts {target}` removes, or set XDG_CACHE_HOME there to a folder elsewhere"
        )
    if trouble := for_processes("\n".join(lines)):
        return trouble
    if not any(_DISK_IS_FULL in line for line in lines):
        return ""
    text, advice = "its disk is full", "make room"
    with contextlib.suppress(HostError):
        free = [line.split(" ", 2) for line in run(_FREE).splitlines()]
        full = {
            kind: [place for what, left, place in free if what == kind and int(left) < little]
            for kind, little in _LITTLE.items()
        }
        if full["bytes"]:
            text += f", there is no room left in {' and in '.join(full['bytes'])}"
            advice = "make some"
        elif full["files"]:
            text = (
                f"it has room for no more files, of any size, in {' and in '.join(full['files'])}"
            )
            advice = "remove some"
    return f"{text}: {advice}, or see what `%sky gc --hosts {target}` removes"


def for_processes(said: str) -> str:
    """Return that a shell could start no process, from what it said; empty if it did not say so."""
    if not _NO_PROCESS.search(said):
        return ""
    return (
        "it lets you start no more processes: end some of yours there (`ps ux` lists them), or "
        "have its limit for a user (`ulimit -u`) raised"
    )
