"""What the system tells of a process or thread in the file ``stat`` of its folder in /proc."""

from __future__ import annotations

from pathlib import Path


def stat_fields(folder: str) -> list[str]:
    """Return the fields from the state on, in the order of proc(5).

    The name before them may contain anything.

    Raises
    ------
    OSError
        If the process is gone.
    """
    return Path(f"{folder}/stat").read_text().rpartition(")")[2].split()
