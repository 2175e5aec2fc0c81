"""``%sky auto on``: every following cell runs on the cluster, as if ``%%sky`` stood above it."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

_LOCAL = re.compile(r"#\s*local\s*", re.IGNORECASE)


class Auto:
    """Puts ``%%sky`` above cells, while it is on."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    @property
    def on(self) -> bool:
        """Whether cells run on the cluster."""
        return self._transform in self._transforms

    def turn(self, on: bool) -> None:
        """Begin or end to run cells on the cluster."""
        if on and not self.on:
            self._transforms.append(self._transform)
        elif not on and self.on:
            self._transforms.remove(self._transform)

    @property
    def _transforms(self) -> list[Any]:
        return self._shell.input_transformers_cleanup

    def _transform(self, lines: list[str]) -> list[str]:
        if belongs_here("".join(lines)) or _is_inside_a_cell() or self._is_of_a_program():
            return lines
        return ["%%sky\n", *lines]

    # Without it a terminal would ask for an empty line at the end, as it does for cell magics.
    _transform.has_side_effects = True  # type: ignore[attr-defined]

    def _is_of_a_program(self) -> bool:
        """Return whether it is no cell of the person: frontends run code of their own, unseen."""
        kernel = getattr(self._shell, "kernel", None)
        request = kernel.get_parent("shell").get("content", {}) if kernel else {}
        return bool(request.get("silent")) or not request.get("store_history", True)


def belongs_here(cell: str) -> bool:
    """Return whether a cell runs in the notebook although ``%sky auto`` is on.

    It does when it begins with ``# local`` or with a cell magic of its own, when it has nothing but
    magics, shell commands and questions, and when ``%sky`` is among its magics.
    """
    first = cell.lstrip().partition("\n")[0].rstrip()
    if first.startswith("%%") or _LOCAL.fullmatch(first):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they are shown where the cell runs
            tree = ast.parse(TransformerManager().transform_cell(cell))
    except SyntaxError:
        return True  # IPython says best what is wrong
    if any(_is_of_ipython(node, "sky") for node in ast.walk(tree)):
        return True
    return all(isinstance(each, ast.Expr) and _is_of_ipython(each.value) for each in tree.body)


def _is_of_ipython(node: ast.AST, magic: str | None = None) -> bool:
    """Return whether this is what IPython makes of its own syntax; of one magic, if it is named."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")))):
            name = node.args[0] if node.args else None
            return magic is None or (isinstance(name, ast.Constant) and name.value == magic)
    return False


def _is_inside_a_cell() -> bool:
    """Return whether it is a cell that asks while it runs, as ``%time`` does for its statement."""
    frame = sys._getframe().f_back
    while frame and frame.f_code is not InteractiveShell.run_code.__code__:
        frame = frame.f_back
    return frame is not None
