"""What every host is at, in one line."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from jupyter_sky.providers.machine import Progress
from jupyter_sky.providers.ssh.line import HostError

_NAMED = 3
"""Hosts that are named in one phase; of more, only their number is said."""


class Phases:
    """Says what hosts are at while they become nodes; called in the threads that do it."""

    def __init__(self, hosts: Sequence[str], progress: Progress) -> None:
        self._lock = threading.Lock()
        self._phases = dict.fromkeys(hosts, "")
        self._progress = progress
        self._said = ""
        self._stopped = False

    def stop(self) -> None:
        """Let no host come to another phase."""
        self._stopped = True

    def say(self, host: str, phase: str) -> None:
        """Note that a host has come to a phase.

        Raises
        ------
        HostError
            When it shall not, because all of it was stopped.
        """
        if self._stopped:
            raise HostError("it was stopped")
        with self._lock:
            self._phases[host] = phase
            if (text := self._text()) != self._said:
                self._said = text
                self._progress(text)

    def _text(self) -> str:
        groups: dict[str, list[str]] = {}
        for host, phase in self._phases.items():
            if phase:
                groups.setdefault(phase, []).append(host)
        parts = []
        for phase, hosts in groups.items():
            few = len(hosts) <= _NAMED or len(hosts) < len(self._phases)
            parts.append(f"{', '.join(hosts) if few else f'{len(hosts)} hosts'}: {phase}")
        return "; ".join(parts)
