"""Widgets in a rank: no page can talk to them, so they are replaced by text."""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.machinery
import sys
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

_WIDGET = "application/vnd.jupyter.widget-view+json"
_BARS = "tqdm.notebook"


def as_text(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the data to show for a displayed object: for a widget, a sentence."""
    if _WIDGET not in data:
        return data
    kind = str(data.get("text/plain", "widget")).partition("(")[0][:60] or "widget"
    return {
        "text/plain": f"{kind} is a widget, which a rank cannot show: bring its values to "
        "the notebook with --out, and make it there."
    }


class TextBars(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Replaces the bars of `tqdm.notebook`, which are widgets, by the text bars of `tqdm`."""

    def __init__(self) -> None:
        self._loader: importlib.abc.Loader | None = None

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the spec of `tqdm.notebook`, with this object as its loader."""
        if name != _BARS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path)
        if spec is not None and spec.loader is not None:
            self._loader, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        """Let Python create the module."""
        return None

    def exec_module(self, module: ModuleType) -> None:
        """Load the module, and replace its bars."""
        assert self._loader is not None
        self._loader.exec_module(module)
        std: Any = importlib.import_module("tqdm.std")
        vars(module).update(
            tqdm=std.tqdm, tqdm_notebook=std.tqdm, trange=std.trange, tnrange=std.trange
        )
        print("tqdm.notebook shows bars as text on ranks, which have no widgets.", file=sys.stderr)


def install() -> None:
    """Use text bars in this process."""
    sys.meta_path.insert(0, TextBars())
