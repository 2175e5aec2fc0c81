"""What ranks take over of the notebook's process beside its names, as items that are sent once."""

from __future__ import annotations

import logging

from jupyter_sky.cluster.namespace.packing import NamespaceItem
from jupyter_sky.serialization.process.environment import Environment, EnvironmentWatch
from jupyter_sky.serialization.process.library_settings import LibrarySettings, LibraryWatch
from jupyter_sky.serialization.process.log_settings import LogSettings
from jupyter_sky.serialization.process.warning_filters import WarningFilters
from jupyter_sky.serialization.user_modules import ImportPaths


class ProcessItems:
    """Finds them; an item is the former one as long as nothing has changed, so it is not resent."""

    def __init__(self) -> None:
        self._former: dict[str, NamespaceItem] = {}
        self._environment = EnvironmentWatch()
        self._libraries = LibraryWatch()

    def find(self, shares_files: bool) -> list[NamespaceItem]:
        """Return the items; what was as usual from the start has none.

        Parameters
        ----------
        shares_files
            Whether the ranks see the notebook's files, and so import from where it does.
        """
        variables, logs = self._environment.changed(), LogSettings.of(logging.root)
        filters, libraries = WarningFilters.here(), self._libraries.changed()
        found = [
            self._item("environment variables", Environment(dict(variables)), not variables),
            self._item("library settings", LibrarySettings(libraries), not libraries),
            self._item("log settings", logs, logs.is_usual),
            self._item("warning filters", filters, not filters.ignored),
        ]
        if shares_files:
            found.append(self._item("import paths", ImportPaths.here(), is_usual=False))
        return [item for item in found if item]

    def _item(self, key: str, value: object, is_usual: bool) -> NamespaceItem | None:
        former = self._former.get(key)
        if former is None and is_usual:
            return None
        if former is None or former.value != value:
            former = self._former[key] = NamespaceItem(key, value, {})
        return former
