"""What a command says where a host has no room for its files, in words and with advice."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence

from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.targets import Target

_DISK_IS_FULL = "No space left on device"
_QUOTA_IS_USED_UP = "Disk quota exceeded"

_FREE = """
for place in "$HOME" "${XDG_CACHE_HOME:-$HOME/.cache}" "${TMPDIR:-/tmp}"; do
    df -kP "$place" 2>/dev/null | awk -v place="$place" 'NR == 2 { print $4, place }'
done
"""
_LITTLE = 16 * 1024  # kilobytes


def explain(lines: Sequence[str], run: Callable[[str], str], target: Target) -> str:
    """Return that the disk is full, or the user's share of it; empty if the command failed else.

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
    if not any(_DISK_IS_FULL in line for line in lines):
        return ""
    text = "its disk is full"
    with contextlib.suppress(HostError):
        free = [line.split(" ", 1) for line in run(_FREE).splitlines()]
        places = [place for size, place in free if int(size) < _LITTLE]
        if places:
            text += f", there is no room left in {' and in '.join(places)}"
    return f"{text}: make some, or see what `%sky gc --hosts {target}` removes"
