"""The hooks of plugins around the life of a rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Protocol

from jupyter_sky.node.rank.group import torch_groups
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.blobs.packed import Packed


class PluginHooks(Protocol):
    """The hooks of plugins, as sent by `jupyter_sky.api.plugin_lifecycle`."""

    def enter_process(self) -> None:
        """Called once, before the first group is formed."""

    def enter_further(self, other: Any) -> None:
        """Called with hooks of additional plugins, before the next group is formed."""

    def enter_app(self) -> None:
        """Called to form each group."""

    def exit_app(self) -> None:
        """Called to leave each group."""

    def exit_process(self) -> None:
        """Called once, before the rank ends."""


class RankPlugins:
    """The plugins that a rank has entered; more may be added during its life.

    Parameters
    ----------
    folder
        The folder of the node's blobs.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._life: Packed | None = None
        self._hooks: PluginHooks | None = None
        self._has_formed_group = False

    @property
    def has_lost_group(self) -> bool:
        """Whether the group that was formed has been destroyed, as scripts do at the end."""
        return self._has_formed_group and not torch_groups.is_formed()

    def enter_process(self, life: Packed) -> None:
        """Enter the process hooks of plugins that were not entered yet."""
        if life == self._life:
            return
        hooks: PluginHooks = blobs.unpack(life, self._folder)
        if self._hooks is None:
            hooks.enter_process()
            self._hooks = hooks
        else:
            self._hooks.enter_further(hooks)
        self._life = life

    def enter_app(self) -> None:
        """Form a group."""
        if self._hooks is not None:
            self._hooks.enter_app()
        self._has_formed_group = torch_groups.is_formed()

    def exit_app(self) -> None:
        """Leave the group, if one was entered."""
        if self._hooks is not None:
            self._hooks.exit_app()

    def exit_process(self) -> None:
        """Leave all of them."""
        if self._hooks is not None:
            self._hooks.exit_process()
