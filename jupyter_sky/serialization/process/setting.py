"""What ranks take over of the notebook's process that is no name."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol


class ProcessSetting(Protocol):
    """A setting of the notebook's process, or a module of the user's."""

    def install(self, store: Path) -> None:
        """Take it over in this process.

        Parameters
        ----------
        store
            A folder for files, which the ranks of a node share.
        """
