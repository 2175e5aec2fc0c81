"""Makes plugins from the words of `--plugin`: names, perhaps with an argument (``keras=torch``)."""

from __future__ import annotations

import importlib.util
import inspect
import os
from collections.abc import Iterable, Sequence
from typing import Any

from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError

_EXAMPLES = {"keras": "torch", "mig": "3g.40gb"}


def make_plugins(words: Sequence[str] | None) -> list[Plugin]:
    """Return the plugins for words; for ``None``, torch if it is installed.

    Raises
    ------
    UsageError
        If there is no such plugin, or it does not accept that argument.
    """
    if words is None:
        words = ("torch",) if importlib.util.find_spec("torch") else ()
    names = plugin_names(words)
    return [_plugin(*word.partition("=")[::2], names) for word in words]


def plugin_names(words: Iterable[str]) -> tuple[str, ...]:
    """Return the names of plugins, without their arguments."""
    return tuple(word.partition("=")[0] for word in words)


def _plugin(name: str, argument: str, beside: Sequence[str]) -> Plugin:
    from jupyter_sky import plugins

    if name not in plugins.__all__:
        raise UsageError(
            f"there is no plugin {name}: there are {', '.join(plugins.__all__)}, and `none`."
        )
    make = getattr(plugins, name)
    further: dict[str, Any] = {}
    match name:
        case "torch" | "accelerate":
            # So that a cell written for many ranks also runs on one, in a group of one.
            further["single_rank"] = True
        case "keras" if not argument:
            argument = next((each for each in ("jax", "torch") if each in beside), "")
        case "huggingface" if argument:
            raise UsageError(
                "a token in a cell would be saved with the notebook: leave it out, and set "
                "`HF_TOKEN` in the notebook's environment."
            )
        case "huggingface":
            further["token"] = os.environ.get("HF_TOKEN") or None
    arguments = (argument,) if argument else ()
    try:
        inspect.signature(make).bind(*arguments, **further)
    except TypeError:
        needed = next(iter(inspect.signature(make).parameters))
        raise UsageError(
            f"the plugin {name} needs a {needed}: type it, as in "
            f"`--plugin {name}={_EXAMPLES[name]}`."
        ) from None
    plugin: Plugin = make(*arguments, **further)
    return plugin
