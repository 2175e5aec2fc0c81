"""Checks that a message has the shape that its type says: the sender could write anything."""

from __future__ import annotations

import math
import types
import typing
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Annotated, Any

Check = Callable[[Any], bool]

LARGEST = 2**53
"""JavaScript, on the page, is exact for whole numbers up to this."""


@dataclass(frozen=True)
class Range:
    """Where a number has to be, both ends included."""

    least: float
    most: float

    def __contains__(self, value: float) -> bool:
        return self.least <= value <= self.most


Size = Annotated[int, Range(0, LARGEST)]
"""A number of bytes or things, or a place among them."""

Time = Annotated[float, Range(0, LARGEST)]
"""Seconds since the epoch."""

PortNumber = Annotated[int, Range(1, 65535)]
"""The number of a TCP port."""


@cache
def check_for(hint: Any) -> Check:
    """Return a function that tells whether a value decoded by msgpack is of a type.

    Parameters
    ----------
    hint
        A class, a `TypedDict`, a `Literal`, a number with a `Range`, or a union or container of
        those. msgpack has lists but no tuples. A value for a `TypedDict` may have further fields.
        Numbers have to be finite: neither times of the clock nor JSON have others.
    """
    if hint is Any:
        return lambda value: True
    if typing.is_typeddict(hint):
        return _fields(hint)
    origin, inner = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        # A single `isinstance` where possible: events come by the thousand.
        kinds = tuple(
            each
            for each in inner
            if isinstance(each, type) and each is not float and not typing.is_typeddict(each)
        )
        checks = tuple(check_for(each) for each in inner if each not in kinds)
        if not checks:
            return lambda value: isinstance(value, kinds)
        if len(checks) == 1:
            [other] = checks
            return lambda value: isinstance(value, kinds) or other(value)
        return lambda value: isinstance(value, kinds) or any(check(value) for check in checks)
    if origin is Annotated:
        kind, (range_,) = check_for(inner[0]), hint.__metadata__
        return lambda value: kind(value) and value in range_
    if origin is typing.Literal:
        return lambda value: isinstance(value, str | bool) and value in inner
    if origin is list:
        item = check_for(inner[0])
        return lambda value: isinstance(value, list) and all(map(item, value))
    if origin is tuple:
        items = tuple(check_for(each) for each in inner)
        return lambda value: (
            isinstance(value, list | tuple)
            and len(value) == len(items)
            and all(check(each) for check, each in zip(items, value, strict=True))
        )
    if origin is dict:
        key, item = map(check_for, inner)
        return lambda value: (
            isinstance(value, dict) and all(map(key, value)) and all(map(item, value.values()))
        )
    if hint is float:
        return lambda value: isinstance(value, int | float) and math.isfinite(value)
    return lambda value: isinstance(value, hint)


def _fields(hint: Any) -> Check:
    fields = []
    for name, kind in typing.get_type_hints(hint, include_extras=True).items():
        is_optional = typing.get_origin(kind) is typing.NotRequired
        inner = typing.get_args(kind)[0] if is_optional else kind
        fields.append((name, check_for(inner), is_optional))

    def has_fields(value: Any) -> bool:
        if not isinstance(value, dict):
            return False
        # A loop is twice as fast as `all`, which matters for the answers of a thousand nodes.
        for name, check, is_optional in fields:
            if name in value:
                if not check(value[name]):
                    return False
            elif not is_optional:
                return False
        return True

    return has_fields
