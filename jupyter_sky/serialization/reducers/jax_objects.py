"""Functions of JAX that refer to themselves, and classes that are registered as its pytrees."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any


def reduce_cache(cached: Any) -> Any:
    """Reduce a JAX function with a cache, to which results of ``jax.checkpoint`` refer."""
    # It does not know its own name.
    for owner, module in list(sys.modules.items()):
        if owner.startswith("jax."):
            for name, value in list(vars(module).items()):
                if value is cached:
                    return getattr, (module, name)
    return NotImplemented


def reduce_custom_rule(function: Any) -> Any:
    """Reduce a function with a custom derivative, whose class requires the function."""
    if type(function).__name__ in ("custom_vjp", "custom_jvp"):
        return object.__new__, (type(function),), vars(function)
    return NotImplemented


def with_tree(kind: type, reduced: Any) -> Any:
    """Add to a reduced class that it is registered as a JAX pytree, if it is.

    Parameters
    ----------
    kind
        The class.
    reduced
        The reduced class.
    """
    trees = sys.modules.get("jax._src.tree_util")
    entry = trees and trees._registry.get(kind)
    if not entry or not isinstance(reduced, tuple) or len(reduced) != 6:
        return reduced
    fields: dict[str, Any] = {}
    if isinstance(entry.to_iter, types.FunctionType) and dataclasses.is_dataclass(kind):
        fields = dict(inspect.getclosurevars(entry.to_iter).nonlocals)
    how: Any = entry.to_iter, entry.from_iter
    if hasattr(kind, "tree_unflatten"):
        how = "with_keys" if hasattr(kind, "tree_flatten_with_keys") else "node"
    elif fields.keys() == {"data_fields", "meta_fields"}:
        how = fields
    *rest, fill = reduced
    return *rest, functools.partial(_fill_tree, fill, how)


def _fill_tree(fill: Callable[[type, Any], None], how: Any, kind: type, state: Any) -> None:
    import jax.tree_util

    fill(kind, state)
    if kind in sys.modules["jax._src.tree_util"]._registry:
        return
    match how:
        case "with_keys":
            jax.tree_util.register_pytree_with_keys_class(kind)
        case "node":
            jax.tree_util.register_pytree_node_class(kind)
        case dict():
            jax.tree_util.register_dataclass(kind, **how)
        case (flatten, unflatten):
            jax.tree_util.register_pytree_node(kind, flatten, unflatten)
