"""Functions of the notebook: the receiver may already have them.

An object that refers to a function, such as an estimator or a model, must refer to the function
that has its name at the receiver: pickle refuses any other, and so do `joblib.dump`,
`torch.save` and `multiprocessing`.
"""

from __future__ import annotations

import re
import sys
import types
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import cloudpickle

from jupyter_sky.serialization.object_tokens.kinds import SCALARS
from jupyter_sky.serialization.reducers import lazy_annotations


def reduce_function(function: types.FunctionType, reduced: Any) -> Any:
    """Correct how cloudpickle reduces a function of ``__main__``.

    Parameters
    ----------
    function
        The function.
    reduced
        What cloudpickle has made of it.
    """
    # This must not depend on the name's value here: the pickle would change with it.
    if not _is_plain(function):
        return reduced
    make, arguments, state, *_ = reduced
    description = _described(function)
    return _main_function, (make, arguments, description), state, None, None, _fill_new_function


def _is_plain(function: types.FunctionType) -> bool:
    """Return whether a function has nothing but code and constants."""
    code, keywords = function.__code__, function.__kwdefaults__ or {}
    return (
        not (function.__closure__ or vars(function))
        and function.__qualname__ == function.__name__ == code.co_name
        and code.co_name.isidentifier()
        and all(type(each) in SCALARS for each in function.__defaults__ or ())
        and all(type(each) in SCALARS for each in keywords.values())
    )


def _described(function: types.FunctionType) -> str:
    """Return what distinguishes a plain function from others with the same code."""
    function = lazy_annotations.evaluated(function)
    own = repr((function.__defaults__, function.__kwdefaults__, function.__doc__))
    with suppress(Exception):  # annotations are objects of any class
        # As text, since they may refer to the function; without what differs between processes.
        return own + re.sub(" at 0x[0-9a-fA-F]+", "", repr(function.__annotations__))
    return own


def _main_function(make: Callable[..., Any], arguments: Any, description: str) -> Any:
    """Make a function of ``__main__``, unless its name has the same function here."""
    code = arguments[0]
    main = vars(sys.modules["__main__"])
    key = code, description
    # An object that refers to it may arrive before the name.
    for known in (main.get(code.co_name), _received_functions.get(key)):
        if (
            isinstance(known, types.FunctionType)
            and known.__globals__ is main
            and _is_plain(known)
            and (known.__code__, _as_sent(known)) == key
        ):
            return known
    made = _received_functions[key] = make(*arguments)
    _new_functions[made] = description
    return made


def _as_sent(function: types.FunctionType) -> str:
    """Return how the sender describes a function, if it is still as it has arrived."""
    if description := _new_functions.get(function):
        return description
    here = _described(function)
    arrived_as, sent_as = _descriptions.get(function, ("", ""))
    return sent_as if here == arrived_as else here


_received_functions: weakref.WeakValueDictionary[Any, types.FunctionType] = (
    weakref.WeakValueDictionary()
)


_descriptions: weakref.WeakKeyDictionary[types.FunctionType, tuple[str, str]] = (
    weakref.WeakKeyDictionary()
)
"""How functions that have arrived are described here, and by their senders.

Another process may write a set in another order.
"""

_new_functions: weakref.WeakKeyDictionary[types.FunctionType, str] = weakref.WeakKeyDictionary()


def _fill_new_function(function: types.FunctionType, state: Any) -> None:
    if (description := _new_functions.pop(function, None)) is not None:
        cloudpickle.cloudpickle._function_setstate(function, state)
        _descriptions[function] = _described(function), description
