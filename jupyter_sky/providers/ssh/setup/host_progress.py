"""The progress of hosts that are being prepared as nodes."""

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
        """Show what will be installed, once if several hosts get the same."""
        with self._lock:
            if plan not in self._plans:
                self._plans = (*self._plans, plan)
                self._progress(Preparation(tuple(self._steps.values()), self._plans))

    def stop(self) -> None:
        """Let the next `report` of each host raise an error."""
        self._stopped = True

    def check(self) -> None:
        """Raise an error if everything was stopped, so that there should be no next step.

        Raises
        ------
        HostError
            If so.
        """
        if self._stopped:
            raise HostError("it was stopped")

    def report(self, host: str, text: str, share: float | None = None) -> None:
        """Report the next step of a host.

        Parameters
        ----------
        host
            The host.
        text
            The present step.
        share
            The progress, from 0 to 1; unchanged by default.

        Raises
        ------
        HostError
            As `check` does.
        """
        self.check()
        with self._lock:
            before = self._steps[host]
            self._publish(Step(host, text, before.share if share is None else share))

    def fail(self, host: str, reason: str) -> None:
        """Report that a host cannot be used; its progress remains visible."""
        if self._stopped:
            return  # it is the end of its connection that fails, and nothing on the host
        with self._lock:
            self._publish(replace(self._steps[host], text=reason.splitlines()[0], failed=True))

    def _publish(self, step: Step) -> None:
        if step != self._steps[step.node]:
            self._steps[step.node] = step
            self._progress(Preparation(tuple(self._steps.values()), self._plans))
