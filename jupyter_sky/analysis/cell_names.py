"""Which names a cell needs from the notebook, and which it defines."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache

from jupyter_sky.analysis.data_flow import Flow
from jupyter_sky.analysis.ipython_syntax import parse


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
    surely : frozenset of str
        Those among them that are bound, or deleted, by every way to the cell's end.
    bodies : mapping
        What functions and classes that the cell defines may look up when they are called.
    later : frozenset of str
        What any of its functions may look up, those without a name and methods among them.
    imported : frozenset of str
        Those of its writes that import statements bind.
    modules : frozenset of str
        Modules that an import statement of the cell names, wherever it stands.
    attributes : frozenset of str
        Names that the cell looks up on objects: what stands behind a dot.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    surely: frozenset[str] = frozenset()
    bodies: Mapping[str, frozenset[str]] = field(default_factory=dict)
    later: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()


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
    settled: set[str] = set()
    try:
        flow.block(tree.body, settled)
    except RecursionError:  # an expression of some hundred terms: every name counts
        names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        return CellNames(frozenset(names), frozenset(names))
    cell = flow.scope
    writes = frozenset(cell.binds | cell.global_binds)
    return CellNames(
        reads=frozenset(cell.reads | cell.global_reads),
        writes=writes,
        surely=writes & settled,
        bodies={name: frozenset(needs) for name, needs in cell.defined.items()},
        later=frozenset(flow.later),
        imported=frozenset(_imported(tree)),
        modules=frozenset(_modules(tree)),
        attributes=frozenset(
            node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)
        ),
    )


# Where no import statement is that binds a name of the cell.
_NO_IMPORTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the names that import statements bind outside of functions and classes."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.Import | ast.ImportFrom):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in each.names)
        elif not isinstance(each, _NO_IMPORTS):
            yield from _imported(each)


def _modules(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
