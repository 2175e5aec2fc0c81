"""A cell as plain Python: without IPython's own syntax, and indented if necessary."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass

from jupyter_sky.analysis.cell_names import analyse
from jupyter_sky.analysis.program_symbols import program_symbols
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.options.definitions import CellOptions

_STARTS = {"FSTRING_START", "TSTRING_START"}
_ENDS = {"FSTRING_END", "TSTRING_END"}


@dataclass(frozen=True)
class PythonCell:
    """A cell as Python.

    Attributes
    ----------
    text
        Its code.
    binds, reads
        The names that it binds, and those that it reads before binding them.
    shows
        Whether it shows its last value.
    future
        Its imports from ``__future__``, which belong to the top of a file.
    """

    text: str
    binds: frozenset[str]
    reads: frozenset[str]
    shows: bool
    future: tuple[str, ...] = ()


@dataclass(frozen=True)
class ExportedCell:
    """A cell of a notebook that becomes a script.

    Attributes
    ----------
    number
        Its number.
    code
        The cell as Python.
    options
        Its options, if it runs on the cluster.
    may_fail
        Whether the notebook goes on after an error in it.
    """

    number: int
    code: PythonCell
    options: CellOptions | None
    may_fail: bool


def python_cell(
    text: str, number: int, on_ranks: bool, above: int = 0
) -> tuple[PythonCell, list[str]]:
    """Return a cell as Python, and the lines of IPython syntax that are left out.

    Parameters
    ----------
    text
        The cell, without the line that sends it to the ranks.
    number
        Its number.
    on_ranks
        Whether it becomes a function that ranks call.
    above
        The number of lines of the cell above the text.

    Raises
    ------
    UsageError
        If other code uses IPython's syntax, or the cell does not compile.
    """
    # Lines above, and those left out, are empty ones at first: errors name lines of the cell.
    text = "\n" * above + text
    lines, left_out, emptied = list[str](), [], set(range(1, above + 1))
    inside = _inside_strings(text)
    for at, line in enumerate(text.splitlines(), 1):
        goes_on = bool(lines) and lines[-1].endswith("\\")  # then % is the operator
        if at not in inside and not goes_on and re.match(r"[%!]", line):
            measured = re.match(r"(%time) +(\w.*)", line)
            left_out.append(measured[1] if measured else line.strip())
            line = measured[2] if measured else ""
            if not measured:
                emptied.add(at)
        lines.append(line)
    code = "\n".join(lines)
    try:
        tree = ast.parse(code)
        if not on_ranks:
            compile(code, "", "exec")  # which is stricter: `await` is nothing for a script
        symbols, _ = program_symbols(code)
    except SyntaxError as error:
        raise UsageError(
            f"cell {number} is no plain Python (line {error.lineno}: {error.msg}): change it, or "
            "run the notebook with `jupyter sky run`."
        ) from None
    future = [
        each
        for each in tree.body
        if isinstance(each, ast.ImportFrom) and each.module == "__future__"
    ]
    for each in future:
        lines[each.lineno - 1 : each.end_lineno] = [""] * ((each.end_lineno or 0) - each.lineno + 1)
    code, shows = _shown("\n".join(lines), tree)
    code = "\n".join(line for at, line in enumerate(code.split("\n"), 1) if at not in emptied)
    if on_ranks:
        code = _without_annotations(code)
    binds = frozenset(
        each.get_name() for each in symbols if each.is_assigned() or each.is_imported()
    )
    reads = analyse(code).reads
    return PythonCell(code, binds, reads, shows, tuple(map(ast.unparse, future))), left_out


def indented(text: str) -> str:
    """Return a block of code indented by one level, leaving the inside of strings unchanged."""
    inside = _inside_strings(text)
    return "\n".join(
        line if at in inside or not line.strip() else f"    {line}"
        for at, line in enumerate(text.split("\n"), 1)
    )


def _inside_strings(text: str) -> set[int]:
    """Return the numbers of lines that begin inside a string."""
    found: set[int] = set()
    begun: list[int] = []
    try:
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            kind = tokenize.tok_name[token.type]
            if kind == "STRING":
                found.update(range(token.start[0] + 1, token.end[0] + 1))
            elif kind in _STARTS:
                begun.append(token.start[0])
            elif kind in _ENDS:
                found.update(range(begun.pop() + 1, token.end[0] + 1))
    except (tokenize.TokenError, SyntaxError):
        pass  # errors are reported where the cell is parsed
    return found


def _shown(code: str, tree: ast.Module) -> tuple[str, bool]:
    """Return code that shows the value of its last expression, and whether there is one."""
    last = tree.body[-1] if tree.body else None
    if not isinstance(last, ast.Expr) or code.rstrip().endswith(";"):
        return code, False
    value = last.value
    is_print = isinstance(value, ast.Call) and ast.unparse(value.func) in ("print", "display")
    if is_print or isinstance(value, ast.Await | ast.Yield | ast.YieldFrom):
        return code, False
    start, end = _span(code.splitlines(keepends=True), value)
    data = code.encode()
    shown = data[start:end]
    if isinstance(value, ast.Tuple) and not shown.startswith(b"("):
        shown = b"(" + shown + b")"
    return b"".join([data[:start], b"show_value(", shown, b")", data[end:]]).decode(), True


def _without_annotations(code: str) -> str:
    """Return code without the annotations of its own names, which cannot be declared global."""
    lines, data = code.splitlines(keepends=True), code.encode()
    for each in reversed(list(_annotated(ast.parse(code)))):
        start, end = _span(lines, each)
        if each.value is None:
            data = data[:start] + b"pass" + data[end:]
        else:
            name_end = _span(lines, each.target)[1]
            equals = data.index(b"=", _span(lines, each.annotation)[1])
            data = data[:name_end] + b" " + data[equals:]
    return data.decode()


def _annotated(node: ast.AST) -> Iterator[ast.AnnAssign]:
    """Yield the annotated names of a block, in order; those of functions are not its own."""
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.AnnAssign) and each.simple:
            yield each
        elif not isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield from _annotated(each)


def _span(lines: list[str], node: ast.expr | ast.stmt) -> tuple[int, int]:
    """Return the byte offsets at which code begins and ends."""
    assert node.end_lineno is not None and node.end_col_offset is not None
    ends = (node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset)
    before = [sum(len(line.encode()) for line in lines[: number - 1]) for number, _ in ends]
    return before[0] + ends[0][1], before[1] + ends[1][1]
