"""Optimizers and learning rate schedules that were changed in place in the notebook.

The optimizer of a rank refers to the rank's model, and holds averages of its gradients. These must
not be lost because the notebook has set another learning rate: as with models, only what was
changed is changed on the rank (see `jupyter_sky.serialization.changes.model_changes`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from jupyter_sky.serialization.models.torch_kinds import is_schedule

STATE = "state"
PARAMETERS, OPTIMIZER = MADE_FOR = (" parameters", " optimizer")
"""What optimizers and schedules are made for, which is not theirs."""


_OF_TORCH = ("_optimizer_", "_zero_grad_", "_warned_", "_opt_called")
"""How names begin of what torch itself keeps in each optimizer, and sets anew."""

_OF_EACH = ("defaults", "state", "param_groups")
_PLAIN = (bool, int, float, str, type(None))
_DEEPEST = 4


def reduce_optimizer(optimizer: Any) -> Any:
    """Reduce an optimizer, including what its class keeps beside groups and state.

    Torch leaves that out, such as the parameters that `LBFGS` lists once more: its next step would
    fail. What is more than data is left out here as well.
    """
    make, arguments, state, *rest = optimizer.__reduce_ex__(5)
    if not isinstance(state, dict):
        return NotImplemented
    more = {
        name: value
        for name, value in vars(optimizer).items()
        if name not in state and not name.startswith(_OF_TORCH) and _is_of(value, _data())
    }
    return make, arguments, state | more, *rest


def _data() -> tuple[type, ...]:
    return (*_PLAIN, sys.modules["torch"].Tensor)


def _is_of(value: Any, kinds: tuple[type, ...], depth: int = 0) -> bool:
    """Return whether a value consists of nothing but values of some types, in containers."""
    if type(value) is dict:
        value = [*value, *value.values()]
    if type(value) in (list, tuple):
        return depth < _DEEPEST and all(_is_of(each, kinds, depth + 1) for each in value)
    return isinstance(value, kinds)


def reduce(schedule: Any) -> Any:
    """Reduce a schedule, including whether its optimizer has stepped.

    The first step of a schedule warns unless the optimizer has stepped. Torch marks that on the
    optimizer's ``step``, and leaves the mark out of the optimizer's pickle.

    Parameters
    ----------
    schedule
        The schedule.
    """
    make, arguments, state, *rest = schedule.__reduce_ex__(5)
    has_stepped = getattr(getattr(schedule, "optimizer", None), "_opt_called", False)
    return make, arguments, (state, has_stepped), *(rest or (None, None)), _fill_schedule


def _fill_schedule(schedule: Any, state: tuple[Any, bool]) -> None:
    if hasattr(schedule, "__setstate__"):
        schedule.__setstate__(state[0])
    else:
        vars(schedule).update(state[0])
    optimizer = getattr(schedule, "optimizer", None)
    if optimizer is None or hasattr(optimizer.step, "_wrapped_by_lr_sched"):
        return
    watched, func = weakref.ref(optimizer), type(optimizer).step

    @functools.wraps(func)
    def step(*arguments: Any, **options: Any) -> Any:
        this: Any = watched()
        this._opt_called = True
        return func(this, *arguments, **options)

    step._wrapped_by_lr_sched = True  # type: ignore[attr-defined]
    optimizer.step = step
    if state[1]:
        optimizer._opt_called = True


def settle(optimizer: Any) -> None:
    """Put what an optimizer knows of its parameters where these are, as `load_state_dict` does.

    Parameters
    ----------
    optimizer
        One that refers to other parameters than before: those may be on a GPU.
    """
    for group in optimizer.param_groups:
        on_gpu = group.get("fused") or group.get("capturable")
        for parameter in group["params"]:
            state = optimizer.state.get(parameter, {})
            # Torch counts steps on the CPU otherwise.
            keys = [key for key in state if key != "step" or on_gpu]
            state.update({key: moved(state[key], parameter.device) for key in keys})


def moved(value: Any, device: Any) -> Any:
    """Return what an optimizer knows of a parameter, with its tensors on a device."""
    if isinstance(value, sys.modules["torch"].Tensor):
        return value.to(device)
    return [moved(each, device) for each in value] if type(value) is list else value


def contents(value: Any, digest: Callable[[Any], str]) -> dict[str, str]:
    """Return digests of everything in an optimizer or a schedule except the parameters.

    Parameters
    ----------
    value
        The optimizer or schedule.
    digest
        Returns the digest of a tensor or of another value.

    Returns
    -------
    dict
        Digests by name: ``0.lr`` is for the first group, ``0.0.exp_avg`` for its first parameter,
        and ``rho`` for an attribute of the user's.
    """
    if is_schedule(value):
        found = {OPTIMIZER: str(id(getattr(value, "optimizer", None)))}
        for prefix, schedule in schedules_in(value):
            found |= {prefix + name: digest(each) for name, each in settings_of(schedule).items()}
        return found
    found = {name: digest(each) for name, each in settings_of(value).items()}
    states = list(states_of(value))
    groups = value.param_groups
    found |= {
        PARAMETERS: str([[id(each) for each in group["params"]] for group in groups]),
        STATE: str([(name, list(state)) for name, _, state in states]),
    }
    for index, group in enumerate(groups):
        found |= {f"{index}.{key}": digest(each) for key, each in group.items() if key != "params"}
    for name, _, state in states:
        found |= {f"{name}.{key}": digest(each) for key, each in state.items()}
    return found


def states_of(optimizer: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each parameter of an optimizer, with a name and its state."""
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield f"{index}.{place}", parameter, optimizer.state.get(parameter, {})


def schedules_in(schedule: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a schedule and those that it consists of."""
    yield prefix, schedule
    for index, each in enumerate(getattr(schedule, "_schedulers", ())):
        yield from schedules_in(each, f"{prefix}{index}.")


def settings_of(value: Any) -> dict[str, Any]:
    """Return the attributes of a schedule that are its own, or those of an optimizer's class.

    For an optimizer, these are numbers and texts: tensors may be its parameters, listed again.
    """
    if is_schedule(value):
        return {
            name: each
            for name, each in vars(value).items()
            if name not in ("optimizer", "_schedulers")
        }
    return {
        name: each
        for name, each in vars(value).items()
        if name not in _OF_EACH and not name.startswith(_OF_TORCH) and _is_of(each, _PLAIN)
    }
