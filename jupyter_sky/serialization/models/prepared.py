"""Models that Accelerate has prepared for mixed precision, as a `Trainer` does with ``bf16=True``.

`Accelerator.prepare` gives the model itself another ``forward``, which casts what it returns and
refuses to be pickled: it belongs to the precision of its rank. A user who asks for such a model
wants what was prepared.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FORMER = "_original_forward"
_MARKS = (_FORMER, "forward", "_is_accelerate_prepared")


def is_prepared(state: Mapping[str, Any]) -> bool:
    """Return whether a module with these attributes was prepared for mixed precision."""
    # Others have an attribute of that name as well, and compiled ones give it to what they wrap.
    casts = getattr(state.get("forward"), "__wrapped__", None)
    return _FORMER in state and type(casts).__name__ == "ConvertOutputsToFp32"


def unprepared(kind: type, state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of a module as they were before it was prepared.

    Parameters
    ----------
    kind
        The class of the module.
    state
        Its attributes; they stay as they are.
    """
    if not is_prepared(state):
        return dict(state)
    bare = {name: value for name, value in state.items() if name not in _MARKS}
    former = state[_FORMER]
    return bare if _is_of_class(former, kind) else {**bare, "forward": former}


def _is_of_class(forward: Any, kind: Any) -> bool:
    """Return whether this is the method of a class, or wraps it, as in a model prepared twice."""
    while (function := getattr(forward, "__func__", forward)) is not kind.forward:
        if not hasattr(function, "__wrapped__"):
            return False
        forward = function.__wrapped__
    return True
