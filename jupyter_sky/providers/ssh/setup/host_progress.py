"""The progress of hosts that become nodes."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.progress import Preparation, Step
from jupyter_sky.providers.ssh.connection.errors import HostError


class HostProgress:
    """Reports the steps of all hosts; called in the threads that prepare them."""

    def __init__(self, hosts: Sequence[str], progress: Progress) -> None:
        self._lock = threading.Lock()
        self._steps = {host: Step(host) for host in hosts}
        self._progress = progress
        self._stopped = False
        self._plans: tuple[str, ...] = ()

    def announce(self, plan: str) -> None:
        """Show what will be installed, once where several hosts get the same."""
        with self._lock:
            if plan not in self._plans:
                self._plans = (*self._plans, plan)
                self._progress(Preparation(tuple(self._steps.values()), self._plans))

    def stop(self) -> None:
        """Let the next `report` of each host raise."""
        self._stopped = True

    def report(self, host: str, text: str, share: float | None = None) -> None:
        """Report the next step of a host.

        Parameters
        ----------
        host
            The host.
        text
            What is done there now.
        share
            How much of its way is behind it then, from 0 to 1; as much as before by default.

        Raises
        ------
        HostError
            When all was stopped, so that there shall be no next step.
        """
        if self._stopped:
            raise HostError("it was stopped")
        with self._lock:
            before = self._steps[host]
            self._publish(Step(host, text, before.share if share is None else share))

    def fail(self, host: str, reason: str) -> None:
        """Report that a host cannot be used; how far it had come stays to be seen."""
        with self._lock:
            self._publish(replace(self._steps[host], text=reason.splitlines()[0], failed=True))

    def _publish(self, step: Step) -> None:
        if step != self._steps[step.node]:
            self._steps[step.node] = step
            self._progress(Preparation(tuple(self._steps.values()), self._plans))
