"""Checks of the settings of `jupyter_sky.AWS`, which come from files as often as from code."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from jupyter_sky.errors import UsageError

_SWITCHES = ("spot", "spot_or_on_demand")
_AMOUNTS = ("max_price", "max_cost", "ask_above", "grace", "idle_timeout")
_COUNTS = ("disk", "watch_every")


def check_settings(provider: Any) -> None:
    """Refuse values of another type than settings have.

    Raises
    ------
    UsageError
        Which one it is, and how it is typed.
    """
    for each in fields(provider):
        name, value = each.name, getattr(provider, each.name)
        if name in _SWITCHES:
            if not isinstance(value, bool):
                raise UsageError(f"{name}={value!r}: type {name}=True or {name}=False.")
        elif name in _AMOUNTS:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and value >= 0) and not (value is None and each.default is None):
                if value is None and name == "idle_timeout":
                    continue
                raise UsageError(f"{name}={value!r} is no amount: type a number, like {name}=20.")
        elif name in _COUNTS:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name}={value!r}: type a whole number, like {name}=100.")
        elif value is not None and not isinstance(value, str):
            raise UsageError(f"{name}={value!r} is no text: put it in quotes.")
