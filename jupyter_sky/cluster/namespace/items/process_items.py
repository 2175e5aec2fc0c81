"""Settings of the notebook's process that ranks take over, as items like those of names."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from jupyter_sky.cluster.namespace.items.item import NamespaceItem
from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.process.environment import EnvironmentChanges, EnvironmentWatch
from jupyter_sky.serialization.process.library_settings import LibrarySettings, LibraryWatch
from jupyter_sky.serialization.process.log_settings import LogSettings
from jupyter_sky.serialization.process.warning_filters import FilterWatch
from jupyter_sky.serialization.user_modules import ImportPaths

_UNCHANGED = EnvironmentChanges({}, {})


class ProcessItems:
    """Finds these items; returns the same object until a setting changes, so it is sent once.

    Parameters
    ----------
    asked_variables
        Environment variables that ranks get whatever they have.
    """

    def __init__(self, asked_variables: Mapping[str, str]) -> None:
        self._asked_variables = asked_variables
        self._former: dict[str, NamespaceItem] = {}
        self._settings: tuple[object, ...] = ()
        self._found: list[NamespaceItem] = []
        self._environment = EnvironmentWatch()
        self._libraries = LibraryWatch()
        self._filters = FilterWatch()

    def find(self, shares_files: bool) -> Sequence[NamespaceItem]:
        """Return the items, without those whose settings have always been the defaults.

        Parameters
        ----------
        shares_files
            Whether the ranks see the notebook's files, and import from the same folders.
        """
        variables, asked = self._environment.changed(), dict(self._asked_variables)
        logs, filters = LogSettings.of(logging.root), self._filters.here()
        libraries = self._libraries.changed()
        paths = ImportPaths.here() if shares_files else None
        settings = (variables, asked, logs, filters, libraries, paths)
        if settings == self._settings:  # as before nearly all runs
            return self._found
        environment = EnvironmentChanges(dict(variables), asked)
        found = [
            self._item("environment variables", environment, environment == _UNCHANGED),
            self._item("library settings", LibrarySettings(libraries), not libraries),
            self._item("log settings", logs, logs.is_usual),
            self._item("warning filters", filters, not filters.ignored),
        ]
        if paths:
            found.append(self._item("import paths", paths, is_usual=False))
        self._settings, self._found = settings, [item for item in found if item]
        return self._found

    def _item(self, key: str, value: object, is_usual: bool) -> NamespaceItem | None:
        former = self._former.get(key)
        if former is None and is_usual:
            return None
        if former is None or former.value != value:
            former = self._former[key] = NamespaceItem(key, value, blobs.MemoryDigests())
        return former
