"""What ranks have in the places of what one of them gives to the notebook.

A cell makes a value on every rank, and only the head gives its own to the notebook (``--out``).
When the notebook changes that, under whatever name, each rank changes what it has in its place. So
all ranks of the run have the same tokens for it, made of the run and of where an object is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from operator import itemgetter
from typing import Any

import blake3

from jupyter_sky.serialization.changes.container_changes import has_parts, parts_of
from jupyter_sky.serialization.models.sharded import unwrapped
from jupyter_sky.serialization.models.torch_kinds import is_any, is_module
from jupyter_sky.serialization.object_tokens.tokens import FIRST_OF_RANKS

_MOST = 1000
"""Parts that are looked at: of larger values, the notebook sends all that it has changed."""


def counterparts(run: str, named: Mapping[str, Any]) -> dict[int, Any]:
    """Return the models and containers in values, by tokens that all ranks of a run make alike.

    Parameters
    ----------
    run
        The run.
    named
        The values by their names.
    """
    found: dict[int, Any] = {}
    with suppress(Exception):  # of any kind, from the user's classes
        # In an order that is the same on all ranks: an object may be in several places.
        waiting, seen = deque(sorted(named.items(), key=itemgetter(0))), dict[int, Any]()
        while waiting:
            place, value = waiting.popleft()
            value = unwrapped(value) if is_module(value) else value  # as the notebook gets it
            parts = _parts(value)
            if id(value) in seen or parts is None:
                continue
            seen[id(value)] = value
            if type(value) is not tuple:
                kind = "" if is_any(value) else type(value).__qualname__
                found[_token(f"{run} {place} {kind}")] = value
            if len(seen) + len(waiting) + len(parts) <= _MOST:
                inside = [(place + label, part) for label, part in parts.items()]
                waiting += sorted(inside, key=itemgetter(0))
    return found


def _parts(value: Any) -> Mapping[str, Any] | None:
    """Return what may be looked at in a value; ``None`` if it has no parts of its own."""
    if is_any(value):
        return {}
    if type(value) is tuple:
        return {f"[{index}]": part for index, part in enumerate(value)}
    return parts_of(value) if has_parts(value) else None


def _token(text: str) -> int:
    return FIRST_OF_RANKS + int.from_bytes(blake3.blake3(text.encode()).digest(7), "big")
