"""The modules and names of a rank, without one."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from jupyter_sky.node.rank.namespace.module_reloader import ModuleReloader


class Rank:
    """The modules and the names of a rank."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.modules = ModuleReloader()
        self.modules.record_imports(since=0)
        # What was imported before is the tests' own: a developer may edit that while they run.
        self.modules._sources.clear()
        self.names: dict[str, Any] = {"__name__": "__main__"}

    def write(self, name: str, source: str) -> None:
        path = self.folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)

    def run(self, cell: str) -> None:
        since = time.time_ns()
        self.modules.reload_edited(self.names)
        self.modules.check(self.names, cell)
        exec(cell, self.names)
        self.modules.record_imports(since)

    def value(self, expression: str) -> Any:
        self.run(f"_ = {expression}")
        return self.names["_"]
