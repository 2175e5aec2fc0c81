"""Which objects a cell changes in place, and which of their parts, as far as its syntax tells.

What functions and methods of the user's change that it calls is told by `call_changes`.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import takewhile

from jupyter_sky.analysis.ipython_syntax import Embedded, nodes_of
from jupyter_sky.analysis.labels import (
    EACH,
    EVERYTHING,
    ITEMS,
    MODULES,
    PARAMETERS,
    ROWS,
    attribute_label,
    item_label,
    key_of,
    method_label,
    method_of,
)
from jupyter_sky.analysis.object_places import ObjectPlace

# Methods that change Python's containers, arrays, generators and models of Keras, and others that
# are named alike.
_CHANGING = (
    *("fill", "partition", "put", "load_weights", "set_weights", "seed", "manual_seed"),
    "cache_clear",
    *("append", "extend", "insert", "reverse", "sort"),
    *("clear", "pop", "popitem", "remove", "setdefault", "update"),
    *("add", "discard", "difference_update", "intersection_update", "symmetric_difference_update"),
)

# Functions of NumPy that change their first argument.
_FILLING = ("copyto", "fill_diagonal", "putmask")

_ROWS = ("loc", "iloc", "at", "iat")
"""What gives access to rows of pandas."""

_GONE_THROUGH = {
    "modules": MODULES,
    "named_modules": MODULES,
    "parameters": PARAMETERS,
    "named_parameters": PARAMETERS,
}
"""Methods of torch for loops."""

_TARGETS = (ast.Call, ast.Attribute, ast.Subscript)
_LEAVING = (ast.Break, ast.Continue, ast.Return, ast.Raise, ast.Yield, ast.YieldFrom)


@dataclass(frozen=True, slots=True)
class ObjectChange:
    """A change of an object.

    Attributes
    ----------
    place
        Where the object is found: ``run.sizes`` for ``run.sizes["x"] = 1``.
    part
        The label of what is set in it (see `labels`), or ``None`` if that is not known.
    """

    place: ObjectPlace
    part: str | None


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """A call of a function or method, which may be the user's.

    Attributes
    ----------
    function
        Where the function is found.
    arguments
        Where its arguments are found, by position or name; those that are found nowhere are left
        out.
    is_in_loop
        Whether a loop calls it for what it goes through, which may be nothing.
    """

    function: ObjectPlace
    arguments: tuple[tuple[int | str, ObjectPlace], ...]
    is_in_loop: bool = False


def targets(nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield attributes that a cell may assign, or what it assigns something in, as written.

    Parameters
    ----------
    nodes
        The nodes of its tree.
    """
    for node in nodes:
        if not isinstance(node, _TARGETS):
            continue
        match node:
            case ast.Call(func=ast.Attribute(value, method)) if method in _CHANGING:
                yield from _path(value)
            case ast.Call(func=ast.Name("setattr"), args=[value, ast.Constant(str(attribute)), _]):
                yield from _path(ast.Attribute(value, attribute))
            case ast.Call(func=ast.Name("setattr"), args=[value, *_]):
                yield from _path(ast.Attribute(value, "*"))
            case ast.Attribute() | ast.Subscript() if not isinstance(node.ctx, ast.Load):
                yield from _path(node)


def sure_changes(statements: Iterable[ast.stmt]) -> Iterator[ObjectChange | FunctionCall]:
    """Yield the changes and calls that statements make whenever they run to their end."""
    for statement in statements:
        match statement:
            case ast.Expr(ast.Call() as call) | ast.Assign(value=ast.Call() as call):
                yield from _called(call)
                yield from _filled(call)
        match statement:
            case ast.Assign() | ast.Delete():
                yield from _set_in(statement.targets)
            case ast.AugAssign(target=ast.Name() as name):
                yield from _changes(name, _changed_by_operator(statement))
            case ast.AugAssign() | ast.AnnAssign():
                yield from _set_in([statement.target])
            case ast.Expr(ast.Call(ast.Attribute(place, method)) as call):
                yield from _changes(place, _changed_by(method, call))
            case ast.Expr(ast.Call(func=ast.Name("setattr" | "delattr"), args=[place, name, *_])):
                is_text = isinstance(name, ast.Constant) and isinstance(name.value, str)
                label = attribute_label(name.value) if is_text else None  # type: ignore[attr-defined]
                yield from _changes(place, [label])
            case ast.With():
                yield from sure_changes(statement.body)
            case ast.Expr(Embedded(body)):
                yield from sure_changes(each for each in body if isinstance(each, ast.stmt))
            case ast.For() if not leaves(statement):
                yield from _set_in_loop(statement)
            case ast.Expr(ast.ListComp(item, [ast.comprehension(target, iterated, [], 0)])):
                yield from _set_in_loop(ast.For(target, iterated, [ast.Expr(item)], []))


def _set_in_loop(loop: ast.For) -> Iterator[ObjectChange | FunctionCall]:
    """Yield what a loop sets in what it goes through; of others it is not known if it does."""
    changes = [*sure_changes(loop.body)]
    match loop.target:
        case ast.Name(variable) | ast.Tuple([_, ast.Name(variable)]):  # after a key, or an index
            pass
        case _:
            variable = ""
    for container, items in _gone_through(loop.iter):
        for each in changes:
            if isinstance(each, FunctionCall):
                yield _in_loop(each, variable, items)
            elif each.place.name == variable:
                yield replace(each, place=items.then(*each.place.steps))
            elif each.place == container:
                yield each


def _in_loop(call: FunctionCall, variable: str, items: ObjectPlace) -> FunctionCall:
    """Return a call in a loop, which has an argument for each item."""
    function = call.function
    if function.name == variable:
        function = items.then(*function.steps)
    arguments = [
        (key, items.then(*place.steps)) for key, place in call.arguments if place.name == variable
    ]
    return FunctionCall(function, tuple(arguments), is_in_loop=True)


def _gone_through(iterated: ast.expr) -> Iterator[tuple[ObjectPlace | None, ObjectPlace]]:
    """Yield the container whose items, keys or indices a loop goes through, and these items."""
    node, step = iterated, EACH
    match iterated:
        case ast.Tuple(items) | ast.List(items):
            yield from ((None, place) for place in map(_place, items) if place)
            return
        case ast.Call(ast.Name("enumerate" | "list" | "sorted"), [inner, *_]):
            yield from _gone_through(inner)
            return
        case ast.Call(ast.Attribute(node, "keys" | "items" | "values"), []):
            pass
        case ast.Call(ast.Name("range"), [ast.Call(ast.Name("len"), [node])]):
            pass
        case ast.Call(ast.Attribute(model, method)) if method in _GONE_THROUGH:
            node, step = model, _GONE_THROUGH[method]
    if place := _place(node):
        yield (place if step == EACH else None), place.then(step)


def leaves(statement: ast.stmt) -> bool:
    """Return whether what comes after a statement, or in it, may be passed over."""
    return any(isinstance(each, _LEAVING) for each in nodes_of(statement))


def _set_in(assigned: Iterable[ast.expr]) -> Iterator[ObjectChange]:
    for target in assigned:
        match target:
            case ast.Attribute(place, name):
                yield from _changes(place, [attribute_label(name)])
            case ast.Subscript(place, key):
                yield from _changes(place, [_label_of(key) or EACH])
                yield from _set_in_rows(place, key)
            case ast.Tuple() | ast.List():
                yield from _set_in(target.elts)


def _set_in_rows(access: ast.expr, key: ast.expr) -> Iterator[ObjectChange]:
    """Yield the columns that are set where something gives access to rows of a frame."""
    match access:
        case ast.Attribute(node, access_by) if access_by in _ROWS and (frame := _place(node)):
            match key:
                case ast.Tuple([_, ast.List(names)]):
                    columns = [_label_of(each) for each in names]
                case ast.Tuple([_, name]) if access_by in ("loc", "at"):
                    columns = [_label_of(name)]
                case _:
                    columns = [EACH]
            yield from (ObjectChange(frame.then(ROWS), each or EACH) for each in columns)


def _filled(call: ast.Call) -> Iterator[ObjectChange]:
    """Yield the arrays that a function fills: with ``out=``, or one of NumPy's."""
    arrays = [each.value for each in call.keywords if each.arg == "out"]
    match call:
        case ast.Call(ast.Attribute(_, name), [array, *_]) if name in _FILLING:
            arrays.append(array)
    for place in filter(None, map(_place, arrays)):
        yield ObjectChange(place, ITEMS)


def _changed_by(method: str, call: ast.Call) -> Collection[str | None]:
    """Return the parts that a method changes in the object that it belongs to.

    Any method may be one of the user's.
    """
    if method == "setdefault":  # it leaves what is there
        return []
    is_torchs = method.endswith("_") and method != "requires_grad_"
    known = _known(method, call) if method in _CHANGING or is_torchs else []
    for each in call.keywords:
        match each:
            case ast.keyword("inplace", ast.Constant(True)):  # of pandas
                known = [EACH]
    return [*known, method_label(method)]


def _changed_by_operator(statement: ast.AugAssign) -> Collection[str | None]:
    """Return the parts that an operator changes in place: the items of an array, or some keys."""
    match statement.op, statement.value:
        case ast.BitOr(), ast.Dict(keys):
            return [_label_of(key) if key else None for key in keys]
        case ((ast.BitOr() | ast.Sub()), ast.Set(items)):
            return [_label_of(each) for each in items]
    return [ITEMS]


def _known(method: str, call: ast.Call) -> Collection[str | None]:
    match method, call.args:
        case (("clear" | "cache_clear"), _):
            return [EVERYTHING]
        case (("add" | "discard"), [key]) | ("pop", [key, *_]):
            return [_label_of(key)]
        case "update", []:
            return [each.arg and item_label(each.arg) for each in call.keywords]
        case "update", [ast.Dict(keys)]:
            names = [each.arg and item_label(each.arg) for each in call.keywords]
            return [*names, *(_label_of(key) if key else None for key in keys)]
    return [None]


def _label_of(key: ast.expr) -> str | None:
    try:
        return item_label(ast.literal_eval(key))
    except (TypeError, ValueError):
        return None


def _called(call: ast.Call) -> Iterator[FunctionCall]:
    if (function := _place(call.func)) is None:
        return
    # After the items of a list, the position of an argument is not known.
    plain = takewhile(lambda each: not isinstance(each, ast.Starred), call.args)
    given: list[tuple[int | str, ast.expr]] = [*enumerate(plain)]
    given += [(each.arg, each.value) for each in call.keywords if each.arg]
    places = ((key, _place(value)) for key, value in given)
    yield FunctionCall(function, tuple((key, place) for key, place in places if place))


def _changes(node: ast.expr, parts: Iterable[str | None]) -> Iterator[ObjectChange]:
    match node:
        case ast.Attribute(node, "__dict__") | ast.Call(ast.Name("vars"), [node]):
            parts = [part and _as_attribute(part) for part in parts if not method_of(part)]
    if place := _place(node):
        yield from (ObjectChange(place, part) for part in parts)
        return
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
        if place := _place(node):  # something in it is changed
            yield ObjectChange(place, None)
            return


def _place(node: ast.expr) -> ObjectPlace | None:
    """Return where something is found; ``None`` if syntax does not tell."""
    match node:
        case ast.Name(name):
            return ObjectPlace(name)
        case ast.Attribute(value, name):
            label: str | None = attribute_label(name)
        case ast.Subscript(value, key):
            label = _label_of(key)
        case _:
            return None
    outer = _place(value)
    return outer.then(label) if outer and label else None


def _as_attribute(label: str) -> str:
    """Return the label of an attribute that is set as an item, in ``vars(run)["step"] = 0``."""
    return label if label in (EVERYTHING, EACH) else attribute_label(key_of(label))


def _path(node: ast.AST) -> Iterator[str]:
    """Yield what is changed, as written; nothing if that is not a name or an attribute of one."""
    path: list[str] = []
    while True:
        match node:
            case ast.Subscript(node):  # of what is behind an index, nothing is known
                path = []
            case ast.Attribute(node, "__dict__") | ast.Call(ast.Name("vars"), [node]):
                path = ["*"]
            case ast.Attribute(node, attribute):
                path = [attribute, *path]
            case _:
                break
    if isinstance(node, ast.Name):
        yield ".".join([node.id, *path])
