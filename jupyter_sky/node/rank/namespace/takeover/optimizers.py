"""Optimizers and schedules of a rank that are changed as those of the notebook were changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from jupyter_sky.serialization.models.optimizers import (
    OPTIMIZER,
    PARAMETERS,
    STATE,
    moved,
    schedules_in,
    settings_of,
    states_of,
)
from jupyter_sky.serialization.models.torch_kinds import is_optimizer, is_schedule


class CannotTakeOver(Exception):
    """A change cannot be made in the rank's object; the message says why."""


def take_over_optimizer(present: Any, received: Any, changes: Collection[str]) -> dict[int, Any]:
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
        _change_schedule(present, received, changes)
    else:
        _change_optimizer(present, received, changes)
    return {id(received): present}


def _change_schedule(present: Any, received: Any, changes: Collection[str]) -> None:
    mine, theirs = list(schedules_in(present)), list(schedules_in(received))
    if [name for name, _ in mine] != [name for name, _ in theirs] or OPTIMIZER in changes:
        raise CannotTakeOver("it has another optimizer, or other parts, on this rank")
    for (prefix, mine_of_it), (_, its) in zip(mine, theirs, strict=True):
        changed = {
            name: each for name, each in settings_of(its).items() if prefix + name in changes
        }
        vars(mine_of_it).update(changed)


def _change_optimizer(present: Any, received: Any, changes: Collection[str]) -> None:
    sizes, others = (
        [len(group["params"]) for group in each.param_groups] for each in (present, received)
    )
    if sizes != others or PARAMETERS in changes:
        raise CannotTakeOver("it has other parameters on this rank")
    pairs = zip(states_of(present), states_of(received), strict=True)
    states = [
        (mine, state, {key for key in state if f"{name}.{key}" in changes})
        for (name, mine, _), (_, _, state) in pairs
    ]
    if any(changed and hasattr(mine, "placements") for mine, _, changed in states):
        raise CannotTakeOver("its state is sharded on this rank")
    settings = settings_of(received)
    for name in (settings_of(present).keys() - settings.keys()) & {*changes}:
        if name not in vars(received):  # rather than a tensor there, which is none of the settings
            delattr(present, name)
    vars(present).update({name: each for name, each in settings.items() if name in changes})
    groups = zip(present.param_groups, received.param_groups, strict=True)
    for index, (mine, theirs) in enumerate(groups):
        mine.update({key: each for key, each in theirs.items() if f"{index}.{key}" in changes})
    for mine, state, changed in states:
        if STATE in changes and mine in present.state:
            for key in present.state[mine].keys() - state.keys():
                del present.state[mine][key]
            if not present.state[mine]:
                del present.state[mine]
        for key in changed:
            # Torch counts steps on the CPU.
            value = state[key] if key == "step" else moved(state[key], mine.device)
            present.state[mine][key] = value


def refer_to(value: Any, others: Mapping[int, Any]) -> None:
    """Make an optimizer refer to other tensors, and a schedule to another optimizer.

    Parameters
    ----------
    value
        Any value; one that is neither is left unchanged.
    others
        Replacements, by the identity of the objects that they replace (see `take_over_optimizer`).
    """
    if is_schedule(value):
        for _, schedule in schedules_in(value):
            if hasattr(schedule, "optimizer"):
                schedule.optimizer = others.get(id(schedule.optimizer), schedule.optimizer)
            if parts := getattr(schedule, "_schedulers", ()):
                schedule._schedulers = type(parts)(others.get(id(each), each) for each in parts)
    if not is_optimizer(value):
        return
    for group in value.param_groups:
        group["params"] = [others.get(id(each), each) for each in group["params"]]
    for name, each in [*vars(value).items()]:
        if type(each) is list:  # parameters that are listed once more, as by LBFGS
            vars(value)[name] = [others.get(id(one), one) for one in each]
    state = [(others.get(id(key), key), each) for key, each in value.state.items()]
    value.state.clear()
    value.state.update(state)
