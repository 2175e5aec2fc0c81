"""Arrays, data sets and figures whose pickles change when they are only looked at, or pickled.

Each function returns what ``__reduce__`` should, or ``NotImplemented`` to leave it to pickle.
"""

from __future__ import annotations

import itertools
from typing import Any


def reduce_masked(array: Any) -> Any:
    """Reduce a masked array of numpy with its fill value."""
    _ = array.fill_value  # set on first access
    return NotImplemented


def reduce_dates(array: Any) -> Any:
    """Reduce an array of dates of pandas without its cache."""
    make, arguments, *rest = array.__reduce_ex__(5)
    match rest:
        case [(*values, {"_cache": _, **others})]:
            return make, arguments, (*values, others) if others else tuple(values)
    return NotImplemented


def reduce_callbacks(registry: Any) -> Any:
    """Reduce the callbacks of a figure of matplotlib, which counts its pickles."""
    reduced = registry.__reduce_ex__(5)
    match reduced:
        case make, arguments, {"_cid_gen": int(count), "callbacks": dict(callbacks)} as state, *_:
            registry._cid_gen = itertools.count(count)
            kept = {signal: each for signal, each in callbacks.items() if each}
            first_free = 1 + max((number for each in kept.values() for number in each), default=-1)
            return make, arguments, {**state, "_cid_gen": first_free, "callbacks": kept}
    return reduced


def reduce_data_set(obj: Any) -> Any:
    """Reduce a data set or array of xarray with its attributes."""
    for name in ("attrs", "encoding"):  # made on first access, and pickled from then on
        getattr(obj, name, None)
    return NotImplemented
