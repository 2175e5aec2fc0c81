"""The interface needed to prepare a machine: running shell scripts there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

ANSWER_WITHIN = 60.0
"""Seconds in which a command has to print something, unless it is known to take longer."""


UNSET = ("PYTHONHOME", "PYTHONPLATLIBDIR")
"""Variables that no command of ours gets: for another Python, with which ours does not start."""


class HostShell(Protocol):
    """A way to run shell scripts on a machine: an SSH connection, or a scheduler's own."""

    @property
    def target(self) -> object:
        """The user's name for the machine."""

    def connect(self) -> object:
        """Make the connection, unless there is a working one.

        Raises
        ------
        HostError
            With the reason why that fails.
        """

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
        ends_with_us: bool = False,
    ) -> str:
        """Run a script, like `SSHConnection.run`, and return its output."""
