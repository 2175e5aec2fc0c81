"""Settings of libraries that a notebook makes in its first cells, so that ranks have them as well.

``%config InlineBackend.figure_format = "retina"``, ``%xmode Minimal``,
``plt.rcParams["figure.dpi"] = 150``, ``pd.set_option("display.max_columns", None)``,
``np.set_printoptions(precision=3)`` and ``torch.set_default_dtype(torch.float64)`` change a library
and no name of the notebook. On ranks, tables and plots would look otherwise, and numbers would have
another precision, without a word.
"""

from __future__ import annotations

import contextlib
import copy
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import BuiltinMethodType, ModuleType

from jupyter_sky.serialization.process.after_import import after_import
from jupyter_sky.serialization.process.libraries import LIBRARIES, Settings
from jupyter_sky.serialization.process.setting import ProcessSetting


@dataclass(frozen=True)
class LibrarySettings(ProcessSetting):
    """What is not as usual of the settings of libraries that this process has imported.

    Attributes
    ----------
    values
        By library, the values of its settings.
    """

    values: Mapping[str, Settings]

    def install(self, store: Path) -> None:
        """Apply the settings to libraries of this process, of which some are imported later."""
        for name, settings in self.values.items():
            _wanted[name] = settings
            after_import(name, _apply)


class LibraryWatch:
    """Finds out which settings of libraries are not as usual, or were so once."""

    def __init__(self) -> None:
        self._raw: dict[str, object] = {}
        self._found: dict[str, Settings] = {}

    def changed(self) -> Mapping[str, Settings]:
        """Return them, by library."""
        # It is asked before each run: unless something has changed, it takes a few microseconds.
        for name, library in LIBRARIES.items():
            module = sys.modules.get(name)
            if module is None:
                if name not in self._found and library.ahead and (ahead := library.ahead()):
                    self._found = {**self._found, name: ahead}
                continue
            with contextlib.suppress(Exception):  # an older or newer version, or half imported
                raw = (library.raw or library.values)(module)
                if name not in self._raw or raw != self._raw[name]:
                    self._raw[name] = copy.deepcopy(raw)
                    self._take_up(name, library.values(module), library.usual(module))
        return self._found

    def _take_up(self, name: str, values: Settings, usual: Settings) -> None:
        found = {
            key: each for key, each in values.items() if key not in usual or each != usual[key]
        }
        # What is as usual again was sent otherwise.
        again = {key: usual[key] for key in self._found.get(name, {}) if key not in found}
        settings = {**again, **{key: each for key, each in found.items() if _is_plain(each)}}
        if settings:
            self._found = {**self._found, name: settings}


def _apply(module: ModuleType) -> None:
    library = LIBRARIES[module.__name__]
    for key, value in _wanted[module.__name__].items():
        # One that this version of the library does not have is left out.
        with contextlib.suppress(Exception), warnings.catch_warnings(action="ignore"):
            library.change(module, key, value)


_wanted: dict[str, Settings] = {}


def _is_plain(value: object) -> bool:
    """Return whether a value is the same everywhere, and needs no library to be read."""
    match value:
        case None | bool() | int() | float() | str():
            return True
        case list() | tuple():
            return all(map(_is_plain, value))
        case dict():
            return all(_is_plain(key) and _is_plain(each) for key, each in value.items())
        case BuiltinMethodType():  # "{:.2f}".format
            return type(value.__self__) is str
    return False
