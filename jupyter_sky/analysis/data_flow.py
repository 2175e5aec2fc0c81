"""The order in which a cell reads and binds names.

`Flow` follows the cell in the order of execution and keeps the set of names that are *settled*:
surely bound, or surely deleted, by the cell itself. Whatever the notebook holds under a settled
name can no longer be seen, so only a read of a name that is not settled is a need. Along a path the
set only grows; where paths meet, their intersection remains.

Where the truth depends on what happens while the cell runs, these are the rules:

- Branches and loop bodies may or may not run. `while True` and a loop over a non-empty literal do.
- An exception may leave a `try` body before its first statement. A `with` body is taken to run to
  its end, or what is made under `torch.no_grad()` would count as needed; only managers called
  `suppress` or `raises` are taken to swallow exceptions.
- A function cannot be called before its name is read: what its body reads counts from the first
  read of its name, transitively. What goes to a decorator, and a lambda, may be called at once.
- So may the methods of a class with bases, keywords or decorators; those of others from the first
  read of the class's name.
- Code that is never reached counts as if it were.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from jupyter_sky.analysis.ipython_syntax import defaults, parameters


@dataclass(slots=True)
class _Loop:
    """What is settled where a `break` or a `continue` leaves the body."""

    breaks: list[set[str]] = field(default_factory=list)
    continues: list[set[str]] = field(default_factory=list)


@dataclass(slots=True)
class Scope:
    """The names of the cell itself, of a class body or of a function body."""

    kind: Literal["cell", "class", "function"]
    binds: set[str] = field(default_factory=set)
    declared_global: set[str] = field(default_factory=set)
    looked_up: set[str] = field(default_factory=set)
    # Looked up while not settled here: they may belong to an enclosing scope.
    reads: set[str] = field(default_factory=set)
    # By a `global` statement they belong to the cell, whatever scopes lie between.
    global_reads: set[str] = field(default_factory=set)
    global_binds: set[str] = field(default_factory=set)
    # What a call of the function or class of this name may look up.
    bodies: dict[str, set[str]] = field(default_factory=dict)
    # The same for all functions and classes, also for those that may have been called already.
    defined: dict[str, set[str]] = field(default_factory=dict)
    loops: list[_Loop] = field(default_factory=list)


class Flow:
    """Walks a cell in the order of execution.

    A ``visit`` method takes a node and the settled names, adds what the node settles, and returns
    False when control surely does not go on behind the node.
    """

    def __init__(self) -> None:
        self.scope = Scope("cell")
        self.later: set[str] = set()  # looked up in functions

    # Names

    def read(self, name: str, settled: set[str]) -> None:
        """Count a look-up, and all that a call of what it finds may look up."""
        scope = self.scope
        names = [name]
        for each in names:  # grows on the way
            scope.looked_up.add(each)
            if each not in settled:
                explicit = each in scope.declared_global
                (scope.global_reads if explicit else scope.reads).add(each)
            if scope.kind == "cell" and each in scope.bodies:
                names += scope.bodies[each].difference(names)

    def call(self, needs: Iterable[str], settled: set[str]) -> None:
        """Count what a function defined here looks up when it is called now."""
        visible = self.visible(settled)
        for name in needs:
            self.read(name, visible)

    def visible(self, settled: set[str]) -> set[str]:
        """Copy what is settled; what is defined in a class body does not see the names of that."""
        return settled - self.scope.binds if self.scope.kind == "class" else set(settled)

    def define(self, name: str, needs: set[str], settled: set[str], *, called: bool) -> None:
        """Bind a function or a class; what it needs counts now if it may be called already."""
        scope = self.scope
        scope.defined.setdefault(name, set()).update(needs)
        if called or scope.kind == "function" or (scope.kind == "cell" and name in scope.looked_up):
            self.call(needs, settled)
        else:
            scope.bodies.setdefault(name, set()).update(needs)
        self.bind(name, settled)

    def bind(self, name: str, settled: set[str]) -> None:
        self.scope.binds.add(name)
        settled.add(name)

    def unbind(self, name: str, settled: set[str]) -> None:
        if self.scope.kind == "class":  # a later look-up passes on to the global name
            self.scope.reads.add(name)
        elif self.scope.kind == "function":
            self.scope.binds.add(name)
        settled.add(name)

    # Control flow

    def visit(self, node: ast.AST, settled: set[str]) -> bool | None:
        method = getattr(self, f"visit_{type(node).__name__}", None)
        if method is None:
            self.block(list(ast.iter_child_nodes(node)), settled)
            return None
        falls: bool | None = method(node, settled)
        return falls

    def block(self, nodes: Sequence[ast.AST], settled: set[str]) -> bool:
        falls = True
        for node in nodes:
            falls = self.visit(node, settled) is not False and falls
        return falls

    def branch(self, nodes: Sequence[ast.AST], settled: set[str]) -> list[set[str]]:
        """Walk what may run or not; return what is settled at its end, if control gets there."""
        inner = set(settled)
        return [inner] if self.block(nodes, inner) else []

    def join(self, ends: list[set[str]], settled: set[str]) -> bool:
        """Go on where one of several branches ended."""
        if ends:
            settled |= set.intersection(*ends)
        return bool(ends)

    def visit_If(self, node: ast.If, settled: set[str]) -> bool:
        self.visit(node.test, settled)
        ends = self.branch(node.body, settled) + self.branch(node.orelse, settled)
        return self.join(ends, settled)

    def visit_IfExp(self, node: ast.IfExp, settled: set[str]) -> None:
        self.visit(node.test, settled)
        self.join(self.branch([node.body], settled) + self.branch([node.orelse], settled), settled)

    def visit_BoolOp(self, node: ast.BoolOp, settled: set[str]) -> None:
        self.visit(node.values[0], settled)
        self.branch(node.values[1:], settled)

    def visit_Compare(self, node: ast.Compare, settled: set[str]) -> None:
        self.block([node.left, node.comparators[0]], settled)
        self.branch(node.comparators[1:], settled)

    def visit_Assert(self, node: ast.Assert, settled: set[str]) -> None:
        self.visit(node.test, settled)
        self.branch([node.msg] if node.msg else [], settled)

    def visit_For(self, node: ast.For | ast.AsyncFor, settled: set[str]) -> bool:
        self.visit(node.iter, settled)
        items = node.iter.elts if isinstance(node.iter, ast.Tuple | ast.List | ast.Set) else []
        runs = any(not isinstance(item, ast.Starred) for item in items)
        return self.loop([node.target, *node.body], node.orelse, settled, runs=runs)

    def visit_While(self, node: ast.While, settled: set[str]) -> bool:
        self.visit(node.test, settled)
        if not isinstance(node.test, ast.Constant) or not node.test.value:
            return self.loop(node.body, node.orelse, settled, runs=False)
        self.scope.loops.append(_Loop())
        self.branch(node.body, settled)
        return self.join(self.scope.loops.pop().breaks, settled)

    def loop(
        self, body: Sequence[ast.AST], orelse: list[ast.stmt], settled: set[str], *, runs: bool
    ) -> bool:
        """Walk a loop; `runs` says that its body surely does."""
        self.scope.loops.append(_Loop())
        ends = self.branch(body, settled)
        left = self.scope.loops.pop()
        ends += left.continues
        if not runs:
            ends.append(settled)
        exhausted = set(settled)
        exhausts = self.join(ends, exhausted)
        ends = self.branch(orelse, exhausted)
        return self.join((ends if exhausts else []) + left.breaks, settled)

    def visit_Break(self, node: ast.Break, settled: set[str]) -> bool:
        self.scope.loops[-1].breaks.append(set(settled))
        return False

    def visit_Continue(self, node: ast.Continue, settled: set[str]) -> bool:
        self.scope.loops[-1].continues.append(set(settled))
        return False

    def visit_Return(self, node: ast.Return | ast.Raise, settled: set[str]) -> bool:
        self.block(list(ast.iter_child_nodes(node)), settled)
        return False

    def visit_Try(self, node: ast.Try, settled: set[str]) -> bool:
        body = set(settled)
        falls = self.block(node.body, body)
        ends = self.branch(node.orelse, body)
        if not falls:
            ends.clear()
        for handler in node.handlers:
            ends += self.branch([handler], settled)
        finish = self.branch(node.finalbody, settled)
        return self.join([end | final for end in ends for final in finish], settled)

    def visit_ExceptHandler(self, node: ast.ExceptHandler, settled: set[str]) -> bool:
        if node.type is not None:
            self.visit(node.type, settled)
        if node.name is None:
            return self.block(node.body, settled)
        if self.scope.kind != "cell":  # in the cell, the name is gone when the handler ends
            self.scope.binds.add(node.name)
        settled.add(node.name)
        falls = self.block(node.body, settled)
        self.unbind(node.name, settled)
        return falls

    def visit_With(self, node: ast.With | ast.AsyncWith, settled: set[str]) -> bool:
        self.block(node.items, settled)
        ends = self.branch(node.body, settled)
        if any(_swallows(item.context_expr) for item in node.items):
            ends.append(settled)
        return self.join(ends, settled)

    def visit_Match(self, node: ast.Match, settled: set[str]) -> bool:
        self.visit(node.subject, settled)
        ends: list[set[str]] = []
        for case in node.cases:
            ends += self.branch([case.pattern, *filter(None, [case.guard]), *case.body], settled)
        last = node.cases[-1]
        if last.guard or not isinstance(last.pattern, ast.MatchAs) or last.pattern.pattern:
            ends.append(settled)  # it may be that no case matches
        return self.join(ends, settled)

    # Names bound and looked up

    def visit_Name(self, node: ast.Name, settled: set[str]) -> None:
        if isinstance(node.ctx, ast.Store):
            self.bind(node.id, settled)
            return
        self.read(node.id, settled)
        if isinstance(node.ctx, ast.Del):
            self.unbind(node.id, settled)

    def visit_Assign(self, node: ast.Assign, settled: set[str]) -> None:
        self.block([node.value, *node.targets], settled)

    def visit_AugAssign(self, node: ast.AugAssign, settled: set[str]) -> None:
        if isinstance(node.target, ast.Name):
            self.read(node.target.id, settled)
        self.block([node.value, node.target], settled)

    def visit_AnnAssign(self, node: ast.AnnAssign, settled: set[str]) -> None:
        if node.value or not isinstance(node.target, ast.Name):
            self.block([*filter(None, [node.value]), node.target], settled)
        elif self.scope.kind == "function":
            self.scope.binds.add(node.target.id)
        if self.scope.kind != "function":  # there, annotations are not evaluated
            self.visit(node.annotation, settled)

    def visit_NamedExpr(self, node: ast.NamedExpr, settled: set[str]) -> None:
        self.block([node.value, node.target], settled)

    def visit_Import(self, node: ast.Import | ast.ImportFrom, settled: set[str]) -> None:
        for alias in node.names:
            if alias.name != "*":
                self.bind(alias.asname or alias.name.partition(".")[0], settled)

    def visit_Global(self, node: ast.Global, settled: set[str]) -> None:
        self.scope.declared_global.update(node.names)

    def visit_MatchAs(self, node: ast.MatchAs | ast.MatchStar, settled: set[str]) -> None:
        self.block(list(ast.iter_child_nodes(node)), settled)
        if node.name:
            self.bind(node.name, settled)

    def visit_MatchMapping(self, node: ast.MatchMapping, settled: set[str]) -> None:
        self.block([*node.keys, *node.patterns], settled)
        if node.rest:
            self.bind(node.rest, settled)

    def visit_Dict(self, node: ast.Dict, settled: set[str]) -> None:
        for key, value in zip(node.keys, node.values, strict=True):
            self.block([*filter(None, [key]), value], settled)

    # Scopes within the cell

    def visit_ListComp(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp, settled: set[str]
    ) -> None:
        first = node.generators[0]
        self.visit(first.iter, settled)
        inner = self.visible(settled)
        for generator in node.generators:
            if generator is not first:
                self.visit(generator.iter, inner)
            for part in ast.walk(generator.target):
                if isinstance(part, ast.Name):
                    if isinstance(part.ctx, ast.Store):
                        inner.add(part.id)
                    else:
                        self.read(part.id, inner)
            self.block(generator.ifs, inner)
        results = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        self.block(results, inner)

    def visit_Lambda(self, node: ast.Lambda, settled: set[str]) -> None:
        self.block(defaults(node.args), settled)
        self.call(self.function(node.args, [node.body]), settled)

    def visit_FunctionDef(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef, settled: set[str]
    ) -> None:
        self.block([*node.decorator_list, *defaults(node.args)], settled)
        type_names, inner = self.type_parameters(node, settled)
        annotations = [parameter.annotation for parameter in parameters(node.args)]
        self.block([*filter(None, [*annotations, node.returns])], inner)
        needs = self.function(node.args, node.body) - type_names
        self.define(node.name, needs, settled, called=bool(node.decorator_list))

    def visit_ClassDef(self, node: ast.ClassDef, settled: set[str]) -> None:
        self.block(node.decorator_list, settled)
        type_names, inner = self.type_parameters(node, settled)
        self.block([*node.bases, *node.keywords], inner)

        outer, self.scope = self.scope, Scope("class")
        self.block(node.body, {"__module__", "__qualname__"})
        body, self.scope = self.scope, outer
        # A class body that binds a name itself looks it up there and in the cell, not in between.
        own = body.reads & body.binds
        body.global_reads |= own
        needs = self.leave(body, body.reads - own) - type_names
        self.call(needs, settled)
        methods = set().union(*body.bodies.values()) - type_names
        called = bool(node.bases or node.keywords or node.decorator_list)
        called = called or not body.looked_up.isdisjoint(body.bodies)
        self.define(node.name, methods, settled, called=called)

    def visit_TypeAlias(self, node: Any, settled: set[str]) -> None:  # since Python 3.12
        self.visit(node.name, settled)
        self.visit(node.value, self.type_parameters(node, settled)[1])

    def function(self, arguments: ast.arguments, body: Sequence[ast.AST]) -> set[str]:
        """Walk the body of a function; return the names of enclosing scopes that it looks up."""
        names = {parameter.arg for parameter in parameters(arguments)}
        outer, self.scope = self.scope, Scope("function", binds=set(names))
        self.block(body, names | {"__class__"})
        inner, self.scope = self.scope, outer
        self.later |= inner.global_reads | (inner.reads - inner.binds)
        # A nonlocal name counts as one of its own: it never is one of the cell's.
        return self.leave(inner, inner.reads - inner.binds)

    def leave(self, inner: Scope, free: set[str]) -> set[str]:
        """Hand on what an inner scope does to the names of the cell; return what it needs."""
        outer = self.scope
        outer.global_binds |= inner.global_binds | (inner.binds & inner.declared_global)
        if outer.kind == "cell":
            return free | inner.global_reads
        outer.global_reads |= inner.global_reads
        return free

    def type_parameters(self, node: ast.AST, settled: set[str]) -> tuple[set[str], set[str]]:
        """Return the names of ``[T: bound]``, and what is settled where they can be seen."""
        parameters = getattr(node, "type_params", [])  # since Python 3.12
        if not parameters:
            return set(), settled
        names = {parameter.name for parameter in parameters}
        inner = settled | names
        for parameter in parameters:
            self.block(list(ast.iter_child_nodes(parameter)), inner)
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
