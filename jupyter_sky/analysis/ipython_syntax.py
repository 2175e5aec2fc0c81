"""Parser for cells: Python with IPython's syntax (``%magic``, ``!command``, ``name?``)."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from contextlib import suppress
from functools import lru_cache

# Magics that run Python in the notebook's namespace, with their options that take a value.
_CODE_MAGICS = {"capture": "(?!)", "prun": "[DTls]", "time": "(?!)", "timeit": "[nprv]"}
# Magics that bind what a program prints. What `--out` of others is, such as `%%sky`, is not known.
_SCRIPT_MAGICS = {"script", "sh", "bash", "cmd", "perl", "ruby", "pypy", "python", "python3"}
_NAME_MAGICS = {"pdef", "pdoc", "pfile", "pinfo", "pinfo2", "psearch", "psource", "store", "xdel"}

_TRANSFORMED = {"run_line_magic", "run_cell_magic", "system", "getoutput"}
"""The methods of the shell that IPython's syntax becomes calls of."""


class Embedded(ast.expr):
    """Replaces a magic or system command with the Python that it runs or looks up, in order."""

    _fields = ("body",)
    __match_args__ = ("body",)

    def __init__(self, body: list[ast.AST]) -> None:
        super().__init__()
        self.body = body


@lru_cache(maxsize=2)  # a cell is parsed for its names, and then for its title
def parse(source: str) -> ast.Module:
    """Parse a cell as typed, or as IPython has transformed it.

    Parameters
    ----------
    source : str
        The cell.

    Returns
    -------
    ast.Module
        Its syntax tree, with an :class:`Embedded` node for each magic and each system command.

    Raises
    ------
    SyntaxError
        The cell does not compile; ``lineno`` counts the lines of `source`.
    """
    try:
        tree = _compile(source)
    except SyntaxError:
        from IPython.core.inputtransformer2 import TransformerManager

        # IPython drops empty lines at the top; they are put back for the line numbers' sake.
        top = source[: len(source) - len(source.lstrip())]
        python = "\n" * top.count("\n") + TransformerManager().transform_cell(source)
        tree = _compile(python)
    else:
        if "get_ipython()" not in source:
            return tree
    with suppress(RecursionError):  # an expression of hundreds of terms: its calls stay as they are
        _Embedder().visit(tree)
    return tree


def nodes_of(tree: ast.AST) -> list[ast.AST]:
    """Return the nodes of a tree as `ast.walk` does, in a fifth of its time; no operators."""
    found = [tree]
    for node in found:  # which grows meanwhile
        found += children_of(node)
    return found


def children_of(node: ast.AST) -> list[ast.AST]:
    """Return the direct children of a node as `ast.iter_child_nodes` does; no operators."""
    kind = type(node)
    if (names := _fields.get(kind)) is None:
        names = _fields[kind] = tuple(each for each in kind._fields if each not in _NO_NODES)
    found: list[ast.AST] = []
    for name in names:
        value = getattr(node, name, None)
        if isinstance(value, list):
            found += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST):
            found.append(value)
    return found


_NO_NODES = frozenset({"id", "ctx", "attr", "op", "ops", "kind", "type_comment"})
"""Fields of nodes that have no nodes, or only such as say how something is used or calculated."""

_fields: dict[type[ast.AST], tuple[str, ...]] = {ast.Constant: ()}
"""The other fields of each kind of node. Most nodes are names and constants, and have none."""


def parameters(arguments: ast.arguments) -> list[ast.arg]:
    """Return all parameters of a function."""
    positional = [*arguments.posonlyargs, *arguments.args]
    return [*positional, *arguments.kwonlyargs, *filter(None, [arguments.vararg, arguments.kwarg])]


def defaults(arguments: ast.arguments) -> list[ast.expr]:
    """Return the default values, in the order in which a definition evaluates them."""
    return [*arguments.defaults, *filter(None, arguments.kw_defaults)]


def _compile(python: str) -> ast.Module:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings are shown when the cell is compiled to run
        tree = ast.parse(python, "<cell>")
        # Some errors, such as `break` outside a loop, are found only by the compiler, which has not
        # got their line.
        try:
            compile(tree, "<cell>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, dont_inherit=True)
        except SyntaxError as error:
            error.text = error.text or python.splitlines()[(error.lineno or 1) - 1]
            raise
    return tree


class _Embedder(ast.NodeTransformer):
    """Replaces the calls into which IPython transforms its syntax."""

    def visit_Call(self, node: ast.Call) -> ast.AST:
        match node:
            case ast.Call(
                func=ast.Attribute(value=ast.Call(func=ast.Name(id="get_ipython")), attr=method),
                args=arguments,
                keywords=[],
            ) if method in _TRANSFORMED:
                texts = [str(each.value) for each in arguments if isinstance(each, ast.Constant)]
                if len(texts) == len(arguments):
                    return Embedded(list(_python_in(method, texts, node.lineno)))
        return self.generic_visit(node)


def _python_in(method: str, texts: list[str], line_number: int) -> Iterator[ast.AST]:
    above = "\n" * (line_number - 1)  # so that errors have the line numbers of the cell
    match method, texts:
        case "run_line_magic", [magic, line] if magic in _CODE_MAGICS:
            yield from _run(magic, line, parse(above + _without_options(magic, line)))
        case "run_line_magic", [magic, line] if magic in _NAME_MAGICS:
            for name in re.findall(r"(?<![\w.])[^\W\d]\w*", line):
                yield ast.Name(name, ast.Load())
        case "run_cell_magic", ["capture", line, body]:
            yield from _run("capture", line, parse(above + "\n" + body))
            yield from _outputs(_without_options("capture", line))
        case "run_cell_magic", [magic, line, body] if magic in _CODE_MAGICS:
            yield from _run(magic, line, parse(above + _without_options(magic, line)))
            yield from _run(magic, line, parse(above + "\n" + body))
        case "run_cell_magic", [magic, line, _]:
            yield from _expanded(line)
            if magic in _SCRIPT_MAGICS:
                yield from _outputs(" ".join(re.findall(r"--(?:out|err)[\s=]+(\w+)", line)))
        case _:
            yield from _expanded(texts[-1] if texts else "")


def _run(magic: str, line: str, code: ast.Module) -> list[ast.stmt]:
    # `%timeit` runs code in a function of its own: names that it binds are not visible afterwards.
    # And what is not to raise an error may have ended anywhere.
    if magic != "timeit" and "--no-raise-error" not in line:
        return code.body
    return [ast.If(test=ast.Constant(value=True), body=code.body, orelse=[])]


def _without_options(magic: str, line: str) -> str:
    option = rf"\s*-(?:{_CODE_MAGICS[magic]}\s*\S+|-[\w-]+|[a-zA-Z]+)(?=\s|$)"
    return re.sub(rf"^(?:{option})+", "", line).lstrip()


def _expanded(text: str) -> Iterator[ast.AST]:
    """Yield the expressions in ``$name`` and ``{expression}``, which IPython evaluates."""
    from IPython.utils.text import DollarFormatter

    with suppress(ValueError):  # an unmatched brace: IPython then expands nothing
        for _, expression, _, _ in DollarFormatter().parse(text):
            with suppress(SyntaxError):
                yield ast.parse((expression or "").strip(), mode="eval").body


def _outputs(names: str) -> list[ast.AST]:
    return [ast.Name(name, ast.Store()) for name in names.split() if name.isidentifier()]
