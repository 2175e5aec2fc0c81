"""Removing environments, wheels and code of ours from a host that nothing uses any more."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from jupyter_sky.formatting import format_bytes, format_count
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.setup.facts import gather_facts

UNUSED_FOR = 14 * 24 * 3600.0
"""Seconds for which nothing has used what is removed, unless the user says otherwise."""

_WITHIN = 600.0
# What is in each folder: what is counted, and what follows.
_KINDS = {
    "envs": ("environment", ""),
    "wheels": ("set", " of wheels"),
    "code": ("version", " of jupyter_sky"),
}

# The time of a folder is when it was used last: who starts an agent sets it, the agent each hour.
# Beside that, nothing is removed that a process has open or in its arguments. Files with other
# names, as those that uv has in its cache, stay on the disk when the folder goes.
_SCRIPT = r"""
umask 077
old="-mmin +{minutes}"
test {minutes} -gt 0 || old=
used=$(mktemp)
# They have zeros in place of ends of lines, at which the grep of BusyBox stops.
cat /proc/[0-9]*/cmdline /proc/[0-9]*/environ /proc/[0-9]*/maps 2>/dev/null | tr '\0' '\n' >"$used"
size() {{
    # As a whole number also where awk would print it as a power of ten.
    find "$1" -type f -links "$2" -exec stat -c %b '{{}}' + |
        awk '{{ sum += $1 }} END {{ printf "%.0f\n", sum * 512 }}'
}}
for folder in {ours}/envs/* {ours}/wheels/* {ours}/code/*; do
    test -d "$folder" || continue
    test "$(find "$folder" -maxdepth 0 $old)" || continue
    grep -qF -- "$folder" "$used" && continue
    alone=$(size "$folder" 1)
    shared=$(size "$folder" +1)
    # An environment of that name is whole or not there, also while it is being removed.
    parent=${{folder%/*}}
    gone=$(mktemp -d "$parent/gone.XXXXXX")
    mv "$folder" "$gone" && rm -rf "$gone" || continue
    printf '%s\t%s\t%s\n' "${{parent##*/}}" "$alone" "$shared"
done
rm -f "$used"
"""


@dataclass(frozen=True)
class Pruned:
    """What was removed on a host.

    Attributes
    ----------
    kinds
        The folder that each thing was in: ``"envs"``, ``"wheels"`` or ``"code"``.
    freed
        Bytes that the disk has again.
    shared
        Bytes that were in it too, and that uv's cache still has.
    """

    kinds: tuple[str, ...]
    freed: int
    shared: int

    def __str__(self) -> str:
        parts = [
            format_count(self.kinds.count(kind), noun) + rest
            for kind, (noun, rest) in _KINDS.items()
            if kind in self.kinds
        ]
        text = f"{', '.join(parts)}, {format_bytes(self.freed)} freed"
        if self.shared > self.freed / 10:
            text += f" ({format_bytes(self.shared)} more are in uv's cache: `uv cache clean` there)"
        return text


def prune(connection: SSHConnection, unused_for: float = UNUSED_FOR) -> Pruned:
    """Remove what nothing has used on a host for so many seconds, and is not in use now.

    Raises
    ------
    HostError
        When the host cannot be used.
    """
    ours = shlex.quote(gather_facts(connection).cache_folder)
    script = _SCRIPT.format(ours=ours, minutes=int(unused_for // 60))
    rows = [row.split("\t") for row in connection.run(script, within=_WITHIN).splitlines()]
    return Pruned(
        tuple(kind for kind, _, _ in rows),
        sum(int(alone) for _, alone, _ in rows),
        sum(int(shared) for _, _, shared in rows),
    )
