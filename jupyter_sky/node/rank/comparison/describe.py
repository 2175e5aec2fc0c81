"""Describes values for users: type, shape, dtype, device and size."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any

from jupyter_sky.formatting import format_count
from jupyter_sky.transport.protocol.inspection import SeenName
from jupyter_sky.transport.protocol.shape import LARGEST

_LONGEST = 120  # characters of a name or a type
_COUNTED = 1000  # items of a list or dictionary whose sizes are added up


def describe(name: str, value: Any) -> SeenName:
    """Describe a value, without a digest and without calling the user's code."""
    shape, dtype, device = _form(value)
    return {
        "name": plain(name),
        "type": plain(type_name(value)),
        "shape": plain(shape),
        "dtype": plain(dtype),
        "device": plain(device),
        "size": size(value),
        "digest": "",
        "parts": 0,
    }


def words(value: Any) -> str:
    """Return a short description of a value: its type, shape and kind of device."""
    shape, dtype, device = _form(value)
    device = "" if device == "cpu" else device.partition(":")[0]
    return plain(" ".join(filter(None, [type_name(value), dtype, shape, device])))


def type_name(value: Any) -> str:
    """Return the name of a value's type, with its module unless it is a builtin."""
    kind = type(value)
    module = kind.__module__
    own = module in ("builtins", "__main__") or module.startswith("jupyter_sky.node.")
    short = "Tensor" if kind.__qualname__ in ("Parameter", "Buffer") else kind.__qualname__
    return short if own or module.startswith("torch.nn.p") else f"{module}.{short}"


def plain(text: str) -> str:
    """Return a text shortened to one line."""
    return " ".join(str(text).split())[:_LONGEST]


def size(value: Any) -> int | None:
    """Return the size of a value in bytes; ``None`` if it cannot be counted cheaply."""
    try:
        found = _size(value, 2)
    except Exception:  # of any kind: the value may be of a class of the user's
        return None
    # A tensor on "meta" or an array of `broadcast_to` may be larger than any memory.
    return found if 0 <= found <= LARGEST else None


def _size(value: Any, depth: int) -> int:
    torch, numpy = sys.modules.get("torch"), sys.modules.get("numpy")
    if torch is not None and isinstance(value, torch.Tensor):
        local = value.to_local() if hasattr(value, "to_local") else value
        return int(local.nbytes) if local.layout is torch.strided else sys.getsizeof(value)
    if torch is not None and isinstance(value, torch.nn.Module):
        return sum(_size(each, 0) for each in [*value.parameters(), *value.buffers()])
    if torch is not None and isinstance(value, torch.optim.Optimizer):
        states = [each for state in value.state.values() for each in state.values()]
        return sum(_size(each, 0) for each in states)
    if numpy is not None and isinstance(value, numpy.ndarray):
        return int(value.nbytes)
    if type_name(value).startswith("pandas."):
        used = getattr(value, "memory_usage", None)
        return int(used() if not hasattr(value, "columns") else used().sum()) if used else 0
    own = sys.getsizeof(value)
    if depth and isinstance(value, Mapping | list | tuple | set | frozenset):
        items = list(value.values() if isinstance(value, Mapping) else value)
        looked_at = items[:_COUNTED]
        inner = sum(_size(each, depth - 1) for each in looked_at)
        return own + (inner * len(items) // len(looked_at) if looked_at else 0)
    return own


def _form(value: Any) -> tuple[str, str, str]:
    """Return the shape, the dtype and the device of a value; empty if it does not tell."""
    try:
        return _told_form(value)
    except Exception:  # of any kind, as above: nested tensors have no sizes
        return "", "", ""


def _told_form(value: Any) -> tuple[str, str, str]:
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.nn.Module):
        parameters = list(value.parameters())
        count = sum(each.numel() for each in parameters)
        return (
            format_count(count, "parameter"),
            _each("dtype", parameters),
            _each("device", parameters),
        )
    if torch is not None and isinstance(value, torch.Tensor):
        placements = getattr(value, "placements", ())
        split = ", sharded" if any(not each.is_replicate() for each in placements) else ""
        return f"{list(value.shape)}{split}", _each("dtype", [value]), _each("device", [value])
    if isinstance(value, str | bytes | bytearray):
        unit = "character" if isinstance(value, str) else "byte"
        return format_count(len(value), unit), "", ""
    if isinstance(value, Mapping | list | tuple | set | frozenset):
        return format_count(len(value), "item"), "", ""
    if type_name(value).startswith(("numpy.", "pandas.")):
        shape, dtype = getattr(value, "shape", ()), getattr(value, "dtype", "")
        return str(list(shape)) if shape else "", str(dtype), ""
    return "", "", ""


def _each(attribute: str, tensors: list[Any]) -> str:
    found = [str(getattr(each, attribute)).removeprefix("torch.") for each in tensors]
    return ", ".join(dict.fromkeys(found))
