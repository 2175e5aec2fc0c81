"""Names that ranks have brought back and then use again, in a script that a notebook becomes.

In a notebook, ranks go on with their own values of these names. A script would send them its copies
with the next call, so it hides these meanwhile. What a cell of the notebook changes in a value
would then not reach the ranks, as it does in the notebook.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.programs.source import ExportedCell

HIDE = '''
@contextlib.contextmanager
def ranks_own(*names):
    """Have ranks use their own values of names, not the copies that they have brought here."""
    copies = {name: globals().pop(name) for name in names}
    try:
        yield
    finally:
        globals().update(copies)
'''


@dataclass
class _Returned:
    """A name that was brought back: the cell that has, and the one that has changed it since."""

    by: int
    changed: int | None = None


def hidden_names(steps: Sequence[ExportedCell], source: Path) -> dict[int, list[str]]:
    """Return, for the numbers of cells on the cluster, the names of which ranks use their own.

    Raises
    ------
    UsageError
        If the notebook changes one of these values before, which a script does not pass on.
    """
    returned: dict[str, _Returned] = {}
    hidden: dict[int, list[str]] = {}
    for step in steps:
        if step.options is None:
            for name in step.code.binds:
                returned.pop(name, None)
            for name in _changed(step.code.text):
                if name in returned:
                    returned[name].changed = step.number
            continue
        used = sorted(step.code.reads & returned.keys())
        for name in used:
            if (changed := returned[name].changed) is not None:
                raise UsageError(
                    f"cell {changed} changes {name}, which cell {returned[name].by} has brought "
                    f"back and cell {step.number} uses on the ranks, and a script does not pass "
                    "that on: change it in a `%%sky` cell, or type `jupyter sky run "
                    f"{source.name}`."
                )
        if used:
            hidden[step.number] = used
        # A state dictionary is no value that ranks have under its name.
        names = (name for name in (*step.options.out, *step.options.gather) if ":" not in name)
        returned.update({name: _Returned(step.number) for name in names})
    return hidden


def _changed(code: str) -> Iterator[str]:
    """Yield names of whose values code assigns a part, or calls a method for its effect."""
    yield from (target.partition(".")[0] for target in analyse(code).targets)
    for each in ast.walk(ast.parse(code)):
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Call):
            part = each.value.func
            while isinstance(part, ast.Attribute | ast.Subscript):
                part = part.value
            if isinstance(part, ast.Name) and part is not each.value.func:
                yield part.id
