"""What it costs to have the package and the extension."""

from __future__ import annotations

import statistics

from tests.benchmarks.measure import Row, Target, alternate, interpreter, spread
from tests.benchmarks.notebook import Notebook

_IMPORTS = 15
_LOADS = 5

_LOAD = """
import time

_started = time.monotonic()
get_ipython().run_line_magic("load_ext", "jupyter_sky")
_taken = time.monotonic() - _started
"""


def imports(peers: bool) -> list[Row]:
    """``import jupyter_sky`` in an interpreter, and ``%load_ext`` in a fresh kernel."""
    empty, ours = alternate(
        lambda: interpreter("pass"), lambda: interpreter("import jupyter_sky"), rounds=_IMPORTS
    )
    beyond = statistics.median(ours) - statistics.median(empty)
    loads = [_load() for _ in range(_LOADS)]
    return [
        Row(
            "import jupyter_sky, beyond the interpreter",
            1000 * beyond,
            "ms",
            Target(50),
            note=f"interpreter alone {spread(empty, 'ms', 1000)}",
        ),
        Row(
            "%load_ext jupyter_sky",
            1000 * statistics.median(loads),
            "ms",
            Target(300),
            note=spread(loads, "ms", 1000),
        ),
    ]


def _load() -> float:
    with Notebook() as notebook:
        notebook.run(_LOAD)
        return float(notebook.value("_taken"))
