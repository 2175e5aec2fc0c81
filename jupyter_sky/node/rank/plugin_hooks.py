"""What the plugins of a cluster do around the life of a rank."""

from __future__ import annotations

from typing import Protocol


class PluginHooks(Protocol):
    """What plugins do around a rank, as `jupyter_sky.api.plugin_lifecycle` sends it."""

    def enter_process(self) -> None:
        """Called once, before the first group is formed."""

    def enter_app(self) -> None:
        """Called to form each group."""

    def exit_app(self) -> None:
        """Called to leave each group."""

    def exit_process(self) -> None:
        """Called once, before the rank ends."""
