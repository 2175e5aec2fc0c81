"""The symbols of a program's top level, in the same way for all versions of Python."""

from __future__ import annotations

import ast
import symtable
import warnings


def program_symbols(
    program: str, mode: str = "exec"
) -> tuple[list[symtable.Symbol], list[symtable.SymbolTable]]:
    """Return the symbols of a program's top level, and the tables of its functions and classes.

    Since Python 3.12, a symbol table contains the variables of comprehensions as if the code around
    them had assigned them (PEP 709). Compiled code has them as local variables, of which the top
    level of a program has no others.

    Parameters
    ----------
    program
        Its source code.
    mode
        As for ``compile``: ``"exec"`` or ``"eval"``.

    Raises
    ------
    SyntaxError, ValueError
        If it does not compile.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings are shown when the program is compiled to run
        table = symtable.symtable(program, "<program>", mode)
        # As in cells, where `await` needs no function.
        code = compile(program, "<program>", mode, ast.PyCF_ALLOW_TOP_LEVEL_AWAIT, True)
    of_comprehensions = {*code.co_varnames} - {*code.co_names}
    symbols = table.get_symbols()
    own = [each for each in symbols if each.get_name() not in of_comprehensions]
    return own, table.get_children()
