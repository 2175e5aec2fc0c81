"""What every host is at while it becomes a node."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.progress import Preparation, Step
from jupyter_sky.providers.ssh.connection.connection import HostError


class Phases:
    """Says what hosts are at while they become nodes; called in the threads that do it."""

    def __init__(self, hosts: Sequence[str], progress: Progress) -> None:
        self._lock = threading.Lock()
        self._steps = {host: Step(host) for host in hosts}
        self._progress = progress
        self._stopped = False

    def stop(self) -> None:
        """Let no host come to another phase."""
        self._stopped = True

    def say(self, host: str, phase: str, share: float | None = None) -> None:
        """Note that a host has come to a phase.

        Parameters
        ----------
        host
            The host.
        phase
            What is done there now, in words.
        share
            How much of its way is behind it then; as much as before if nothing is said.

        Raises
        ------
        HostError
            When it shall not, because all of it was stopped.
        """
        if self._stopped:
            raise HostError("it was stopped")
        with self._lock:
            before = self._steps[host]
            self._show(Step(host, phase, before.share if share is None else share))

    def fail(self, host: str, reason: str) -> None:
        """Note that a host cannot be used; what it was at stays to be seen."""
        with self._lock:
            self._show(replace(self._steps[host], text=reason.splitlines()[0], failed=True))

    def _show(self, step: Step) -> None:
        if step != self._steps[step.node]:
            self._steps[step.node] = step
            self._progress(Preparation(tuple(self._steps.values())))
