"""What preparing a machine takes of the way to it: shell scripts that run there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

ANSWER_WITHIN = 60.0
"""Seconds in which a command has to print something, unless it is known to take longer."""


class HostShell(Protocol):
    """A way to run shell scripts on a machine: an SSH connection, or a scheduler's own."""

    @property
    def target(self) -> object:
        """What the user calls the machine, as text."""

    def connect(self) -> object:
        """Make the connection, if there is none that works.

        Raises
        ------
        HostError
            With the reason why there is none.
        """

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
        ends_with_us: bool = False,
    ) -> str:
        """Run a script, as `SSHConnection.run` does, and return what it prints."""
