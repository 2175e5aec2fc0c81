"""Which names a cell needs from the notebook, and which it defines."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from functools import lru_cache

from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.syntax import parse


@dataclass(frozen=True, slots=True)
class CellNames:
    """What a cell takes from the notebook's namespace, and what it puts there.

    Attributes
    ----------
    reads : frozenset of str
        Names that may be read before the cell itself has surely defined them. Builtins and names
        that exist nowhere are among them: whoever sends, sends what the notebook has.
    writes : frozenset of str
        Names that the cell may bind. What ``from module import *`` binds is not known.
    """

    reads: frozenset[str]
    writes: frozenset[str]


@lru_cache(maxsize=256)
def analyse(source: str) -> CellNames:
    """Find the global names that a cell reads and writes.

    Parameters
    ----------
    source : str
        The cell as typed, with IPython's syntax.

    Returns
    -------
    CellNames
        Its reads and its writes.

    Raises
    ------
    SyntaxError
        The cell does not compile; ``lineno`` counts the lines of `source`.
    """
    tree = parse(source)
    flow = Flow()
    try:
        flow.block(tree.body, set())
    except RecursionError:  # an expression of some hundred terms: every name counts
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return CellNames(frozenset(names), frozenset(names))
    cell = flow.scope
    return CellNames(
        frozenset(cell.reads | cell.global_reads), frozenset(cell.binds | cell.global_binds)
    )
