"""The names that a cell needs from the notebook, and those that it defines."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from jupyter_sky.analysis.data_flow import DataFlow
from jupyter_sky.analysis.ipython_syntax import children_of, nodes_of, parse
from jupyter_sky.analysis.object_changes import FunctionCall, ObjectChange, sure_changes, targets
from jupyter_sky.analysis.query_names import put_query_names


@dataclass(frozen=True, slots=True)
class CellNames:
    """What a cell reads from the notebook's namespace, and what it binds there.

    Attributes
    ----------
    reads : frozenset of str
        Names that may be read before the cell itself has definitely assigned them, including
        builtins and names that exist nowhere.
    writes : frozenset of str
        Names that the cell may bind, except those of ``from module import *``, which are not known.
    always_bound : frozenset of str
        Those of `writes` that are bound, or deleted, on every path to the end of the cell.
    deferred_reads : mapping
        For each function and class that the cell defines, the names it may look up when called.
    all_deferred_reads : frozenset of str
        The names that any function of the cell, including lambdas and methods, may look up.
    imported : frozenset of str
        Names that import statements of the cell bind.
    modules : frozenset of str
        Modules that the cell imports, also inside functions.
    attributes : frozenset of str
        Names of attributes that the cell looks up: whatever follows a dot.
    targets : frozenset of str
        Attributes that the cell assigns, or what it assigns or deletes something in:
        ``config.sizes`` for ``config.sizes["x"] = 1``, ``config.sizes.update(x=1)`` and
        ``setattr(config, "sizes", {})``, and ``sizes`` for ``sizes["x"] = 1``. ``config.*`` stands
        for any, as for ``setattr(config, name, 1)`` and ``vars(config).update(sizes)``.
    only_augmented : frozenset of str
        Names that it binds by operators alone, as ``rows += [1]`` does: a list stays the same.
    always_changed : frozenset of ObjectChange or FunctionCall
        What is assigned or deleted in objects, and called, on every path to the end of the cell.
    """

    reads: frozenset[str] = frozenset()
    writes: frozenset[str] = frozenset()
    always_bound: frozenset[str] = frozenset()
    deferred_reads: Mapping[str, frozenset[str]] = field(default_factory=dict)
    all_deferred_reads: frozenset[str] = frozenset()
    imported: frozenset[str] = frozenset()
    modules: frozenset[str] = frozenset()
    attributes: frozenset[str] = frozenset()
    targets: frozenset[str] = frozenset()
    only_augmented: frozenset[str] = frozenset()
    always_changed: frozenset[ObjectChange | FunctionCall] = frozenset()


@lru_cache(maxsize=256)
def analyse(source: str) -> CellNames:
    """Find the global names that a cell reads and binds.

    Parameters
    ----------
    source : str
        The cell as typed, with IPython's syntax.

    Returns
    -------
    CellNames
        The names that it reads, binds and imports.

    Raises
    ------
    SyntaxError
        The cell does not compile; ``lineno`` counts the lines of `source`.
    """
    tree = parse(source)
    nodes = nodes_of(tree)
    if put_query_names(nodes):
        nodes = nodes_of(tree)
    flow = DataFlow()
    assigned: set[str] = set()
    try:
        flow.block(tree.body, assigned)
    except RecursionError:  # an expression of hundreds of terms: assume every name
        names = {node.id for node in nodes if isinstance(node, ast.Name)}
        return CellNames(frozenset(names), frozenset(names))
    cell = flow.scope
    imports = [node for node in nodes if isinstance(node, _IMPORTS)]
    writes = frozenset(cell.binds | cell.global_binds)
    return CellNames(
        reads=frozenset(cell.reads | cell.global_reads),
        writes=writes,
        always_bound=writes & assigned,
        deferred_reads={name: frozenset(needs) for name, needs in cell.deferred_reads.items()},
        all_deferred_reads=frozenset(flow.all_deferred_reads),
        imported=frozenset(_imported(tree)) if imports else frozenset(),
        modules=frozenset(_modules(imports)),
        attributes=frozenset(node.attr for node in nodes if isinstance(node, ast.Attribute)),
        targets=frozenset(targets(nodes)),
        only_augmented=frozenset(_only_augmented(nodes)),
        always_changed=frozenset(sure_changes(tree.body)),
    )


def _only_augmented(nodes: Sequence[ast.AST]) -> Iterator[str]:
    """Yield names that nothing but operators bind.

    What imports and definitions bind is another object, which is noticed in any case.
    """
    if not any(isinstance(node, ast.AugAssign) for node in nodes):
        return
    operators, others = Counter[str](), Counter[str]()
    for node in nodes:
        match node:
            case ast.AugAssign(target=ast.Name(name)):
                operators[name] += 1
            case ast.Name(name, ctx=ast.Store()):
                others[name] += 1  # the target of an operator, too
    yield from (name for name, count in operators.items() if others[name] == count)


_IMPORTS = (ast.Import, ast.ImportFrom)

# Import statements inside these do not bind names of the cell.
_NO_IMPORTS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.expr)


def _imported(node: ast.AST) -> Iterator[str]:
    """Yield the names bound by import statements outside functions and classes."""
    for each in children_of(node):
        if isinstance(each, _IMPORTS):
            yield from (alias.asname or alias.name.partition(".")[0] for alias in each.names)
        elif not isinstance(each, _NO_IMPORTS):
            yield from _imported(each)


def _modules(imports: Sequence[ast.AST]) -> Iterator[str]:
    for node in imports:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module
