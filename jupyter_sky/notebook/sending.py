"""A line that says what leaves the notebook, if that is large enough to take a while."""

from __future__ import annotations

from collections.abc import Mapping

from IPython.core.interactiveshell import InteractiveShell

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.formatting import format_bytes
from jupyter_sky.notebook.progress import ProgressLine

LARGE = 32_000_000
"""Bytes above which a person is told that something is on its way."""

_STEPS = 10


class SendingLine:
    """Says which names are sent, how large they are, and how far that is.

    Parameters
    ----------
    shell
        The shell of the notebook.
    cluster
        The cluster.
    sizes
        What leaves for each name, in bytes.
    """

    def __init__(self, shell: InteractiveShell, cluster: Cluster, sizes: Mapping[str, int]) -> None:
        total = sum(sizes.values())
        self._cluster = cluster
        self._line = ProgressLine(shell, cluster.name) if total >= LARGE else None
        largest = sorted(sizes, key=lambda name: -sizes[name])
        # What is small beside the rest is not what takes the time.
        named = [name for name in largest if sizes[name] >= total / 20]
        self._what = ", ".join(f"{name} ({format_bytes(sizes[name])})" for name in named)
        self._step = -1

    def update(self, sent: int, total: int) -> None:
        """Say how many bytes have left of all; called as often as anything has."""
        step = _STEPS * sent // total if total else _STEPS
        if self._line is None or step == self._step:
            return
        self._step = step
        done = f"sent in {self._line.seconds:.1f} s" if sent >= total else f"{sent / total:.0%}"
        note = self._cluster.sending_note
        self._line.say(f"sending {self._what}: {done}{f' ({note})' if note else ''}")
