"""Objects of `typing`, which pickle finds by name: those of ``__main__`` have to be made."""

from __future__ import annotations

import sys
from typing import Any


def reduce(obj: Any) -> Any:
    """Reduce `typing` objects that pickle would look up in the receiver's ``__main__``."""
    kind = type(obj)
    if getattr(obj, "__module__", None) != "__main__":
        return NotImplemented
    match kind.__name__:
        case "ParamSpec":
            bound = {"bound": obj.__bound__, "covariant": obj.__covariant__}
            return _named, (
                kind,
                (obj.__name__,),
                {**bound, "contravariant": obj.__contravariant__},
            )
        case "TypeVarTuple":
            return _named, (kind, (obj.__name__,), {})
        case "NewType":
            return _named, (kind, (obj.__name__, obj.__supertype__), {})
        case "TypeAliasType":  # of a `type` statement, since Python 3.12
            return _type_alias, (obj.__name__, obj.__value__, obj.__type_params__)
    return NotImplemented


def _type_alias(name: str, value: Any, parameters: tuple[Any, ...]) -> Any:
    # Its module is that of the code which makes it.
    scope = {"__name__": "__main__", "made": (name, value), "parameters": parameters}
    exec("from typing import *\nmade = TypeAliasType(*made, type_params=parameters)", scope)
    return scope["made"]


def _named(kind: type, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    """Return the value of a name in ``__main__`` if it is of the right kind, or make it."""
    known = vars(sys.modules["__main__"]).get(arguments[0])
    if type(known) is kind:
        return known
    made: Any = kind(*arguments, **options)
    made.__module__ = "__main__"
    return made
