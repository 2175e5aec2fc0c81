"""Annotations, which newer versions of Python evaluate only when somebody asks for them.

Since Python 3.14, annotations may name what does not exist yet, or never (PEP 649). Pickles contain
their values; where they have none, their text, as after ``from __future__ import annotations``.
"""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any


def evaluated(function: types.FunctionType) -> types.FunctionType:
    """Return a function, or one like it, whose annotations have values."""
    if sys.version_info < (3, 14):
        return function
    try:
        _ = function.__annotations__
    except Exception:  # evaluating them runs code of the user's
        code, scope = function.__code__, function.__globals__
        made = types.FunctionType(
            code, scope, function.__name__, function.__defaults__, function.__closure__
        )
        made.__kwdefaults__ = function.__kwdefaults__
        made.__qualname__, made.__module__ = function.__qualname__, function.__module__
        made.__doc__ = function.__doc__
        made.__dict__.update(function.__dict__)
        made.__annotations__ = _as_text(function)
        return made
    return function


def of_class(kind: type) -> dict[str, Any]:
    """Return the annotations that a class has itself; before Python 3.14 they are an attribute."""
    if sys.version_info < (3, 14):
        return {}
    try:
        return dict(kind.__annotations__)
    except Exception:  # evaluating them runs code of the user's
        return _as_text(kind)


def reduce_reference(obj: Any) -> Any:
    """Reduce a reference to what does not exist yet without the class and the cells around it."""
    if type(obj).__name__ == "ForwardRef":
        return type(obj), (obj.__forward_arg__,)
    return NotImplemented


def _as_text(annotated: Any) -> dict[str, Any]:
    annotationlib = importlib.import_module("annotationlib")  # of Python 3.14
    return dict(annotationlib.get_annotations(annotated, format=annotationlib.Format.STRING))
