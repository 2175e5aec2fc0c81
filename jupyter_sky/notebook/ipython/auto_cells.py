"""``%sky auto on``: puts ``%%sky`` above every following cell, so that it runs on the cluster."""

from __future__ import annotations

import ast
import re
import sys
import warnings
from typing import Any

from IPython.core.inputtransformer2 import TransformerManager
from IPython.core.interactiveshell import InteractiveShell

_LOCAL = re.compile(r"#\s*local\s*", re.IGNORECASE)


class AutoCells:
    """Puts ``%%sky`` above cells while it is switched on.

    Parameters
    ----------
    shell
        The shell of the notebook.
    """

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell

    @property
    def on(self) -> bool:
        """Whether it is switched on."""
        return self._transform in self._transforms

    def switch(self, on: bool) -> None:
        """Switch it on or off."""
        if on and not self.on:
            self._transforms.append(self._transform)
        elif not on and self.on:
            self._transforms.remove(self._transform)

    @property
    def _transforms(self) -> list[Any]:
        transforms: list[Any] = self._shell.input_transformers_cleanup
        return transforms

    def _transform(self, lines: list[str]) -> list[str]:
        if runs_locally("".join(lines)) or _is_inside_cell() or self._is_of_frontend():
            return lines
        return ["%%sky\n", *lines]

    # Otherwise a terminal would wait for an empty line after each cell, as for cell magics.
    _transform.has_side_effects = True  # type: ignore[attr-defined]

    def _is_of_frontend(self) -> bool:
        """Return whether a frontend is running code of its own, which the user does not see."""
        kernel = getattr(self._shell, "kernel", None)
        request = kernel.get_parent("shell").get("content", {}) if kernel else {}
        return bool(request.get("silent")) or not request.get("store_history", True)


def runs_locally(cell: str) -> bool:
    """Return whether a cell runs in the notebook even if ``%sky auto`` is on.

    It does if it begins with ``# local`` or with a cell magic, if it only has line magics, shell
    commands and ``name?``, or if ``%sky`` is among its magics.
    """
    first = cell.lstrip().partition("\n")[0].rstrip()
    if first.startswith("%%") or _LOCAL.fullmatch(first):
        return True
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings are shown when the cell runs
            tree = ast.parse(TransformerManager().transform_cell(cell))
    except SyntaxError:
        return True  # IPython shows best what is wrong
    # IPython takes a `%%sky` below other lines for a line magic named `%sky`.
    if any(_is_magic_call(node, name) for node in ast.walk(tree) for name in ("sky", "%sky")):
        return True
    return all(isinstance(each, ast.Expr) and _is_magic_call(each.value) for each in tree.body)


def _is_magic_call(node: ast.AST, magic: str | None = None) -> bool:
    """Return whether a call is IPython's translation of a magic (of ``magic``, if given)."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")))):
            name = node.args[0] if node.args else None
            return magic is None or (isinstance(name, ast.Constant) and name.value == magic)
    return False


def _is_inside_cell() -> bool:
    """Return whether a running cell transforms code, as ``%time`` does with its statement."""
    frame = sys._getframe().f_back
    while frame and frame.f_code is not InteractiveShell.run_code.__code__:
        frame = frame.f_back
    return frame is not None
