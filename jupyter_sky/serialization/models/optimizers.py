"""Optimizers and learning rate schedules that were changed in place in the notebook.

The optimizer of a rank refers to the rank's model, and holds averages of its gradients. These must
not be lost because the notebook has set another learning rate: as with models, only what was
changed is changed on the rank (see `jupyter_sky.serialization.changes.model_changes`).
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Any

_STATE = "state"
_PARAMETERS, _OPTIMIZER = MADE_FOR = (" parameters", " optimizer")
"""What optimizers and schedules are made for, which is not theirs."""


class CannotTakeOver(Exception):
    """A change cannot be made in the rank's object; the message says why."""


def is_optimizer(value: Any) -> bool:
    """Return whether a value is a torch optimizer."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.optim.Optimizer)


def is_schedule(value: Any) -> bool:
    """Return whether a value is a torch learning rate schedule."""
    torch = sys.modules.get("torch")
    if torch is None:
        return False
    kinds = torch.optim.lr_scheduler
    return isinstance(value, (kinds.LRScheduler, kinds.ReduceLROnPlateau))


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
            state.update({key: _moved(state[key], parameter.device) for key in keys})


def _moved(value: Any, device: Any) -> Any:
    if isinstance(value, sys.modules["torch"].Tensor):
        return value.to(device)
    return [_moved(each, device) for each in value] if type(value) is list else value


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
        Digests by name: ``0.lr`` is for the first group, ``0.0.exp_avg`` for its first parameter.
    """
    if is_schedule(value):
        found = {_OPTIMIZER: str(id(getattr(value, "optimizer", None)))}
        for prefix, schedule in _schedules(value):
            found |= {prefix + name: digest(each) for name, each in _attributes(schedule).items()}
        return found
    states = list(_states(value))
    groups = value.param_groups
    found = {
        _PARAMETERS: str([[id(each) for each in group["params"]] for group in groups]),
        _STATE: str([(name, list(state)) for name, _, state in states]),
    }
    for index, group in enumerate(groups):
        found |= {f"{index}.{key}": digest(each) for key, each in group.items() if key != "params"}
    for name, _, state in states:
        found |= {f"{name}.{key}": digest(each) for key, each in state.items()}
    return found


def _states(optimizer: Any) -> Iterator[tuple[str, Any, dict[str, Any]]]:
    """Yield each parameter of an optimizer, with a name and its state."""
    for index, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            yield f"{index}.{place}", parameter, optimizer.state.get(parameter, {})


def _schedules(schedule: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield a schedule and those that it consists of."""
    yield prefix, schedule
    for index, each in enumerate(getattr(schedule, "_schedulers", ())):
        yield from _schedules(each, f"{prefix}{index}.")


def _attributes(schedule: Any) -> dict[str, Any]:
    return {
        name: each
        for name, each in vars(schedule).items()
        if name not in ("optimizer", "_schedulers")
    }


# On a rank


def take_over(present: Any, received: Any, changes: Collection[str]) -> dict[int, Any]:
    """Apply the changes of the notebook's optimizer or schedule to that of a rank.

    Parameters
    ----------
    present
        The rank's.
    received
        The notebook's.
    changes
        The names of the parts that differ from what the rank was sent or sent back.

    Returns
    -------
    dict
        ``present``, by the identity of ``received``.

    Raises
    ------
    CannotTakeOver
        If they are not alike; nothing was changed then.
    """
    if type(present) is not type(received):
        raise CannotTakeOver(f"it is of type {type(present).__name__} on this rank")
    if is_schedule(received):
        _take_over_schedule(present, received, changes)
    else:
        _take_over_optimizer(present, received, changes)
    return {id(received): present}


def _take_over_schedule(present: Any, received: Any, changes: Collection[str]) -> None:
    mine, theirs = list(_schedules(present)), list(_schedules(received))
    if [name for name, _ in mine] != [name for name, _ in theirs] or _OPTIMIZER in changes:
        raise CannotTakeOver("it has another optimizer, or other parts, on this rank")
    for (prefix, mine_of_it), (_, its) in zip(mine, theirs, strict=True):
        changed = {
            name: each for name, each in _attributes(its).items() if prefix + name in changes
        }
        vars(mine_of_it).update(changed)


def _take_over_optimizer(present: Any, received: Any, changes: Collection[str]) -> None:
    sizes, others = (
        [len(group["params"]) for group in each.param_groups] for each in (present, received)
    )
    if sizes != others or _PARAMETERS in changes:
        raise CannotTakeOver("it has other parameters on this rank")
    states = [
        (mine, state, {key for key in state if f"{name}.{key}" in changes})
        for (name, mine, _), (_, _, state) in zip(_states(present), _states(received), strict=True)
    ]
    if any(changed and hasattr(mine, "placements") for mine, _, changed in states):
        raise CannotTakeOver("its state is sharded on this rank")
    groups = zip(present.param_groups, received.param_groups, strict=True)
    for index, (mine, theirs) in enumerate(groups):
        mine.update({key: each for key, each in theirs.items() if f"{index}.{key}" in changes})
    for mine, state, changed in states:
        if _STATE in changes and mine in present.state:
            for key in present.state[mine].keys() - state.keys():
                del present.state[mine][key]
            if not present.state[mine]:
                del present.state[mine]
        for key in changed:
            # Torch counts steps on the CPU.
            value = state[key] if key == "step" else _moved(state[key], mine.device)
            present.state[mine][key] = value


def refer_to(value: Any, others: Mapping[int, Any]) -> None:
    """Make an optimizer refer to other tensors, and a schedule to another optimizer.

    Parameters
    ----------
    value
        Any value; one that is neither is left unchanged.
    others
        Replacements, by the identity of the objects that they replace (see `take_over`).
    """
    if is_schedule(value):
        for _, schedule in _schedules(value):
            if hasattr(schedule, "optimizer"):
                schedule.optimizer = others.get(id(schedule.optimizer), schedule.optimizer)
            if parts := getattr(schedule, "_schedulers", ()):
                schedule._schedulers = type(parts)(others.get(id(each), each) for each in parts)
    if not is_optimizer(value):
        return
    for group in value.param_groups:
        group["params"] = [others.get(id(each), each) for each in group["params"]]
    state = [(others.get(id(key), key), each) for key, each in value.state.items()]
    value.state.clear()
    value.state.update(state)
