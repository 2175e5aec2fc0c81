"""Finds the objects of a process that are of some classes, whoever refers to them."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import Any


def instances(*kinds: tuple[type, ...]) -> Iterator[list[Any]]:
    """Yield the instances of each group of classes, without asking them what they are."""
    objects = gc.get_objects()
    types = set(map(type, objects))
    for classes in kinds:
        wanted = {each for each in types if issubclass(each, classes)}
        yield [each for each in objects if type(each) in wanted] if wanted else []
