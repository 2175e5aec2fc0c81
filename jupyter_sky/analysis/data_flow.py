"""Data-flow analysis: which names a cell may read before it has definitely assigned them.

`DataFlow` follows the cell in the order of execution and keeps the set of names that are
*assigned*: bound, or deleted, by the cell itself on every path so far (definite assignment). Such a
name no longer refers to the notebook's value, so the cell needs a name only if it reads it while it
is not assigned. Along a path the set only grows; where paths meet, their intersection is taken.

Where the answer depends on what happens at run time, these rules apply:

- Branches and loop bodies may or may not run. `while True` and a loop over a non-empty literal do.
- An exception may leave a `try` body before its first statement. A `with` body is assumed to run
  to its end, or names bound under `torch.no_grad()` would count as needed; only managers called
  `suppress` or `raises` are assumed to swallow exceptions.
- A function cannot be called before its name is read: the reads in its body count from the first
  read of its name, transitively. A decorated function and a lambda may be called at once.
- So may the methods of a class with bases, keywords or decorators; the methods of other classes
  count from the first read of the class's name.
- Unreachable code counts as reachable.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from jupyter_sky.analysis.ipython_syntax import children_of, defaults, parameters
from jupyter_sky.analysis.scopes import Loop, Scope


class DataFlow:
    """Walks a cell in the order of execution.

    A ``visit`` method takes a node and the assigned names, adds those that the node assigns, and
    returns False if control never continues after the node.

    Attributes
    ----------
    scope
        The scope being walked; at the end, the scope of the cell.
    all_deferred_reads
        Names that functions and methods look up.
    """

    def __init__(self) -> None:
        self.scope = Scope("cell")
        self.all_deferred_reads: set[str] = set()

    # Names

    def read(self, name: str, assigned: set[str]) -> None:
        """Record a read of a name, and of every name that calling its value may look up."""
        scope = self.scope
        names = [name]
        for each in names:  # grows during the loop
            scope.looked_up.add(each)
            if each not in assigned or (each != name and each in scope.in_comprehension):
                declared = each in scope.declared_global
                (scope.global_reads if declared else scope.reads).add(each)
            if scope.kind == "cell" and each in scope.not_called:
                names += scope.not_called[each].difference(names)

    def call(self, needs: Iterable[str], assigned: set[str]) -> None:
        """Record the names that a function defined here looks up if it is called now."""
        visible = self.visible(assigned)
        for name in needs:
            self.read(name, visible)

    def visible(self, assigned: set[str]) -> set[str]:
        """Return the assigned names that functions defined here see: not those of a class body."""
        return assigned - self.scope.binds if self.scope.kind == "class" else set(assigned)

    def define(self, name: str, needs: set[str], assigned: set[str], *, called: bool) -> None:
        """Bind a function or a class; record what it needs if it may be called already."""
        scope = self.scope
        scope.deferred_reads.setdefault(name, set()).update(needs)
        if called or scope.kind == "function" or (scope.kind == "cell" and name in scope.looked_up):
            self.call(needs, assigned)
        else:
            scope.not_called.setdefault(name, set()).update(needs)
        self.bind(name, assigned)

    def bind(self, name: str, assigned: set[str]) -> None:
        self.scope.binds.add(name)
        assigned.add(name)

    def unbind(self, name: str, assigned: set[str]) -> None:
        if self.scope.kind == "class":  # a later look-up falls through to the global name
            self.scope.reads.add(name)
        elif self.scope.kind == "function":
            self.scope.binds.add(name)
        assigned.add(name)

    # Control flow

    def visit(self, node: ast.AST, assigned: set[str]) -> bool | None:
        kind = type(node)
        if kind not in _visitors:
            _visitors[kind] = getattr(DataFlow, f"visit_{kind.__name__}", None)
        if (visitor := _visitors[kind]) is not None:
            return visitor(self, node, assigned)
        self.block(children_of(node), assigned)
        return None

    def block(self, nodes: Sequence[ast.AST], assigned: set[str]) -> bool:
        falls = True
        for node in nodes:
            falls = self.visit(node, assigned) is not False and falls
        return falls

    def branch(self, nodes: Sequence[ast.AST], assigned: set[str]) -> list[set[str]]:
        """Walk code that may not run; return the names assigned at its end, if reachable."""
        inner = set(assigned)
        return [inner] if self.block(nodes, inner) else []

    def join(self, ends: list[set[str]], assigned: set[str]) -> bool:
        """Continue where several branches meet, with the names that all of them assigned."""
        if ends:
            assigned |= set.intersection(*ends)
        return bool(ends)

    def visit_If(self, node: ast.If, assigned: set[str]) -> bool:
        self.visit(node.test, assigned)
        ends = self.branch(node.body, assigned) + self.branch(node.orelse, assigned)
        return self.join(ends, assigned)

    def visit_IfExp(self, node: ast.IfExp, assigned: set[str]) -> None:
        self.visit(node.test, assigned)
        self.join(
            self.branch([node.body], assigned) + self.branch([node.orelse], assigned), assigned
        )

    def visit_BoolOp(self, node: ast.BoolOp, assigned: set[str]) -> None:
        self.visit(node.values[0], assigned)
        self.branch(node.values[1:], assigned)

    def visit_Compare(self, node: ast.Compare, assigned: set[str]) -> None:
        self.block([node.left, node.comparators[0]], assigned)
        self.branch(node.comparators[1:], assigned)

    def visit_Assert(self, node: ast.Assert, assigned: set[str]) -> None:
        self.visit(node.test, assigned)
        self.branch([node.msg] if node.msg else [], assigned)

    def visit_For(self, node: ast.For | ast.AsyncFor, assigned: set[str]) -> bool:
        self.visit(node.iter, assigned)
        items = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List | ast.Set) else []
        runs = any(not isinstance(item, ast.Starred) for item in items)
        return self.loop([node.target, *node.body], node.orelse, assigned, runs=runs)

    def visit_While(self, node: ast.While, assigned: set[str]) -> bool:
        self.visit(node.test, assigned)
        if not isinstance(node.test, ast.Constant) or not node.test.value:
            return self.loop(node.body, node.orelse, assigned, runs=False)
        self.scope.loops.append(Loop())
        self.branch(node.body, assigned)
        return self.join(self.scope.loops.pop().breaks, assigned)

    def loop(
        self, body: Sequence[ast.AST], orelse: list[ast.stmt], assigned: set[str], *, runs: bool
    ) -> bool:
        """Walk a loop; `runs` says that its body runs at least once."""
        self.scope.loops.append(Loop())
        ends = self.branch(body, assigned)
        left = self.scope.loops.pop()
        ends += left.continues
        if not runs:
            ends.append(assigned)
        exhausted = set(assigned)
        exhausts = self.join(ends, exhausted)
        ends = self.branch(orelse, exhausted)
        return self.join((ends if exhausts else []) + left.breaks, assigned)

    def visit_Break(self, node: ast.Break, assigned: set[str]) -> bool:
        self.scope.loops[-1].breaks.append(set(assigned))
        return False

    def visit_Continue(self, node: ast.Continue, assigned: set[str]) -> bool:
        self.scope.loops[-1].continues.append(set(assigned))
        return False

    def visit_Return(self, node: ast.Return | ast.Raise, assigned: set[str]) -> bool:
        self.block(children_of(node), assigned)
        return False

    def visit_Try(self, node: ast.Try, assigned: set[str]) -> bool:
        body = set(assigned)
        falls = self.block(node.body, body)
        ends = self.branch(node.orelse, body)
        if not falls:
            ends.clear()
        for handler in node.handlers:
            ends += self.branch([handler], assigned)
        finish = self.branch(node.finalbody, assigned)
        return self.join([end | final for end in ends for final in finish], assigned)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, assigned: set[str]) -> bool:
        if node.type is not None:
            self.visit(node.type, assigned)
        if node.name is None:
            return self.block(node.body, assigned)
        if self.scope.kind != "cell":  # in the cell, the name is gone when the handler ends
            self.scope.binds.add(node.name)
        assigned.add(node.name)
        falls = self.block(node.body, assigned)
        self.unbind(node.name, assigned)
        return falls

    def visit_With(self, node: ast.With | ast.AsyncWith, assigned: set[str]) -> bool:
        self.block(node.items, assigned)
        ends = self.branch(node.body, assigned)
        if any(_swallows(item.context_expr) for item in node.items):
            ends.append(assigned)
        return self.join(ends, assigned)

    def visit_Match(self, node: ast.Match, assigned: set[str]) -> bool:
        self.visit(node.subject, assigned)
        ends: list[set[str]] = []
        for case in node.cases:
            ends += self.branch([case.pattern, *filter(None, [case.guard]), *case.body], assigned)
        last = node.cases[-1]
        if last.guard or not isinstance(last.pattern, ast.MatchAs) or last.pattern.pattern:
            ends.append(assigned)  # maybe no case matches
        return self.join(ends, assigned)

    # Names bound and looked up

    def visit_Name(self, node: ast.Name, assigned: set[str]) -> None:
        if isinstance(node.ctx, ast.Store):
            self.bind(node.id, assigned)
            return
        self.read(node.id, assigned)
        if isinstance(node.ctx, ast.Del):
            self.unbind(node.id, assigned)

    def visit_Assign(self, node: ast.Assign, assigned: set[str]) -> None:
        self.block([node.value, *node.targets], assigned)

    def visit_AugAssign(self, node: ast.AugAssign, assigned: set[str]) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id, assigned)
        self.block([node.value, node.target], assigned)

    def visit_AnnAssign(self, node: ast.AnnAssign, assigned: set[str]) -> None:
        if node.value or not isinstance(node.target, ast.Name):
            self.block([*filter(None, [node.value]), node.target], assigned)
        elif self.scope.kind == "function":
            self.scope.binds.add(node.target.id)
        if self.scope.kind != "function":  # there, annotations are not evaluated
            self.visit(node.annotation, assigned)

    def visit_NamedExpr(self, node: ast.NamedExpr, assigned: set[str]) -> None:
        self.block([node.value, node.target], assigned)

    def visit_Import(self, node: ast.Import | ast.ImportFrom, assigned: set[str]) -> None:
        for alias in node.names:
            if alias.name != "*":
                self.bind(alias.asname or alias.name.partition(".")[0], assigned)

    def visit_Global(self, node: ast.Global, assigned: set[str]) -> None:
        self.scope.declared_global.update(node.names)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar, assigned: set[str]) -> None:
        self.block(children_of(node), assigned)
        if node.name:
            self.bind(node.name, assigned)

    def visit_MatchMapping(self, node: ast.MatchMapping, assigned: set[str]) -> None:
        self.block([*node.keys, *node.patterns], assigned)
        if node.rest:
            self.bind(node.rest, assigned)

    def visit_Dict(self, node: ast.Dict, assigned: set[str]) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self.block([*filter(None, [key]), value], assigned)

    # Scopes within the cell

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, assigned: set[str]
    ) -> None:
        first = node.generators[0]
        self.visit(first.iter, assigned)
        inner, before = self.visible(assigned), self.scope.in_comprehension
        for generator in node.generators:
            if generator is not first:
                self.visit(generator.iter, inner)
            for part in ast.walk(generator.target):
                if isinstance(part, ast.Name):
                    if isinstance(part.ctx, ast.Store):
                        if part.id not in inner:
                            self.scope.in_comprehension = {part.id, *self.scope.in_comprehension}
                        inner.add(part.id)
                    else:
                        self.read(part.id, inner)
            self.block(generator.ifs, inner)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.block([*filter(None, results)], inner)  # `{**each for …}` has no value (Python 3.15)
        self.scope.in_comprehension = before

    def visit_Lambda(self, node: ast.Lambda, assigned: set[str]) -> None:
        self.block(defaults(node.args), assigned)
        self.call(self.function(node.args, [node.body]), assigned)

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, assigned: set[str]
    ) -> None:
        self.block([*node.decorator_list, *defaults(node.args)], assigned)
        type_names, inner = self.type_parameters(node, assigned)
        annotations = [parameter.annotation for parameter in parameters(node.args)]
        self.block([*filter(None, [*annotations, node.returns])], inner)
        needs = self.function(node.args, node.body) - type_names
        self.define(node.name, needs, assigned, called=bool(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef, assigned: set[str]) -> None:
        self.block(node.decorator_list, assigned)
        type_names, inner = self.type_parameters(node, assigned)
        self.block([*node.bases, *node.keywords], inner)

        outer, self.scope = self.scope, Scope("class")
        self.block(node.body, {"__module__", "__qualname__"})
        body, self.scope = self.scope, outer
        # A class body looks up a name that it binds itself there and in the cell, not in between.
        own = body.reads & body.binds
        body.global_reads |= own
        needs = self.leave(body, body.reads - own) - type_names
        self.call(needs, assigned)
        methods = set().union(*body.not_called.values()) - type_names
        called = bool(node.bases or node.keywords or node.decorator_list)
        called = called or not body.looked_up.isdisjoint(body.not_called)
        self.define(node.name, methods, assigned, called=called)

    def visit_TypeAlias(self, node: Any, assigned: set[str]) -> None:  # since Python 3.12
        self.visit(node.name, assigned)
        self.visit(node.value, self.type_parameters(node, assigned)[1])

    def function(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> set[str]:
        """Walk the body of a function; return the names that it looks up in enclosing scopes."""
        names = {parameter.arg for parameter in parameters(arguments)}
        outer, self.scope = self.scope, Scope("function", binds=set(names))
        self.block(body, names | {"__class__"})
        inner, self.scope = self.scope, outer
        self.all_deferred_reads |= inner.global_reads | (inner.reads - inner.binds)
        # A nonlocal name counts as the function's own: it never is a name of the cell.
        return self.leave(inner, inner.reads - inner.binds)

    def leave(self, inner: Scope, free: set[str]) -> set[str]:
        """Add the effects of an inner scope on the cell's names; return the names that it needs."""
        outer = self.scope
        outer.global_binds |= inner.global_binds | (inner.binds & inner.declared_global)
        if outer.kind == "cell":
            return free | inner.global_reads
        outer.global_reads |= inner.global_reads
        return free

    def type_parameters(self, node: ast.AST, assigned: set[str]) -> tuple[set[str], set[str]]:
        """Return the names of ``[T: bound]``, and the assigned names where these are visible."""
        parameters = getattr(node, "type_params", [])  # since Python 3.12
        if not parameters:
            return set(), assigned
        names = {parameter.name for parameter in parameters}
        inner = assigned | names
        for parameter in parameters:
            self.block(children_of(parameter), inner)
        return names, inner

    visit_AsyncFor = visit_For
    visit_AsyncFunctionDef = visit_FunctionDef
    visit_AsyncWith = visit_With
    visit_DictComp = visit_ListComp
    visit_GeneratorExp = visit_ListComp
    visit_ImportFrom = visit_Import
    visit_MatchStar = visit_MatchAs
    visit_Raise = visit_Return
    visit_SetComp = visit_ListComp
    visit_TryStar = visit_Try


def _swallows(manager: ast.expr) -> bool:
    called = manager.func if isinstance(manager, ast.Call) else manager
    name = getattr(called, "attr", None) or getattr(called, "id", None)
    return name in {"suppress", "raises"}


_visitors: dict[type[ast.AST], Callable[[DataFlow, Any, set[str]], bool | None] | None] = {}
"""The method for each kind of node, which takes longer to find than some take; ``None`` if none."""
