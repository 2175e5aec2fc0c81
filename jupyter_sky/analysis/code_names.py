"""What compiled code looks up: global names, and modules that it imports."""

from __future__ import annotations

import dis
import types
import weakref

_imported: weakref.WeakKeyDictionary[types.CodeType, frozenset[str]] = weakref.WeakKeyDictionary()
_globals: weakref.WeakKeyDictionary[types.CodeType, frozenset[str]] = weakref.WeakKeyDictionary()


def imported_in(code: types.CodeType) -> frozenset[str]:
    """Return the modules that import statements in a function name."""
    names = _imported.get(code)
    if names is None:
        found = {step.argval for step in dis.get_instructions(code) if step.opname == "IMPORT_NAME"}
        inner = [imported_in(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        names = _imported[code] = frozenset(found.union(*inner))
    return names


def globals_of(code: types.CodeType) -> frozenset[str]:
    """Return the global names that a function, and those within it, read, assign or delete."""
    names = _globals.get(code)
    if names is None:
        found = {
            step.argval for step in dis.get_instructions(code) if step.opname.endswith("_GLOBAL")
        }
        inner = [globals_of(each) for each in code.co_consts if isinstance(each, types.CodeType)]
        names = _globals[code] = frozenset(found.union(*inner))
    return names
