"""What was made with a process group goes on with the one that takes its place.

A group that was broken, as by a Stop in a collective, is destroyed and formed again, and torch has
no way to put the new one into what refers to the old one: wrapped models, optimizers, and whatever
the user's objects keep. So each reference is replaced here. DistributedDataParallel has another one
in C++, and what it knows of a step that was cut off: it makes that anew, as where it is unpickled.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from collections.abc import Iterator, Sequence
from types import CellType, FunctionType, MemberDescriptorType
from typing import Any

from jupyter_sky.serialization.instances import instances

_DEPTH = 3
"""How many tuples a group may be in, one in the other."""


def replace(pairs: Sequence[tuple[Any, Any]]) -> None:
    """Let groups take the place of others of the same ranks, on this rank.

    Parameters
    ----------
    pairs
        A group that was destroyed, and the one that was formed since, for each of them.
    """
    if any((old.rank(), old.size()) != (new.rank(), new.size()) for old, new in pairs):
        # The cluster was scaled: what was made for another number of ranks is made again.
        forget_accelerate()
        return
    formers = [former for former, _ in pairs]
    found = {id(former): new for former, new in pairs}
    kept = [formers]  # as long as their ids are used
    passed_over = _untracked()
    own = {id(pairs), id(passed_over), *map(id, pairs)}
    for _ in range(_DEPTH):
        kept.append(_replace_all(kept[-1], found, passed_over, own))
    from torch.nn.parallel import DistributedDataParallel

    [models] = instances((DistributedDataParallel,))
    for each in models:
        if each.__dict__.get("reducer"):
            with contextlib.suppress(Exception):  # its first use says what is wrong
                _renew(each, [*found.values()])


def forget_accelerate() -> None:
    """Let the next `Accelerator` look at the group and its settings again."""
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def _replace_all(
    formers: list[Any], found: dict[int, Any], passed_over: list[Any], own: set[int]
) -> list[Any]:
    """Replace objects in all that refers to them; return the tuples that have to be replaced too.

    Parameters
    ----------
    found
        What takes their place, by their id; new tuples are added.
    passed_over
        What the collector does not know, and may refer to them.
    own
        The ids of objects that are left as they are.
    """
    own.add(id(formers))
    tuples: list[Any] = []
    # The namespace is as old as the fork server, whose objects are kept away from the collector.
    for holder in [vars(sys.modules["__main__"]), *passed_over, *gc.get_referrers(*formers)]:
        if id(holder) not in own and id(holder) not in found:
            with contextlib.suppress(Exception):  # of a class of the user's
                if not isinstance(holder, tuple):
                    _replace_in(holder, found)
                elif any(id(each) in found for each in holder):
                    found[id(holder)] = _with_new(holder, found)
                    tuples.append(holder)
    return tuples


def _untracked() -> list[Any]:
    """Return what the collector passes over since no cycle can lead through it.

    These are tuples and dictionaries that refer to nothing but strings, numbers, groups of torch,
    and others of themselves.
    """
    found: dict[int, Any] = {}
    # A list around that of all objects would be in itself, and keep them until it is collected.
    newest = gc.get_objects()
    newest.append(vars(sys.modules["__main__"]))
    while newest:
        # There are millions: what an object is has to be asked in the quickest way.
        newest = [
            each
            for each in gc.get_referents(*newest)
            if (type(each) is tuple or type(each) is dict)
            and not gc.is_tracked(each)
            and id(each) not in found
        ]
        found.update(zip(map(id, newest), newest, strict=True))
    return [*found.values()]


def _with_new(former: tuple[Any, ...], new: dict[int, Any]) -> Any:
    make = getattr(former, "_make", tuple)  # of a named tuple
    return make(new.get(id(each), each) for each in former)


def _replace_in(holder: Any, new: dict[int, Any]) -> None:
    """Replace what an object refers to by what there is for its id."""
    if isinstance(holder, CellType):
        holder.cell_contents = new[id(holder.cell_contents)]
        return
    if isinstance(holder, FunctionType) and id(holder.__defaults__) in new:
        holder.__defaults__ = new[id(holder.__defaults__)]
    if not isinstance(holder, dict | list):
        for name in _slots(type(holder)):
            if (former := id(getattr(holder, name, None))) in new:
                setattr(holder, name, new[former])
        holder = holder.__dict__
    places = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for place, former in [(place, id(value)) for place, value in places if id(value) in new]:
        holder[place] = new[former]


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                yield name


def _renew(model: Any, groups: Sequence[Any]) -> None:
    """Let a DistributedDataParallel begin its next step, if it has one of these groups."""
    import torch.distributed as dist

    if all(model.process_group is not each for each in groups):
        return
    # As where a model is unpickled, which torch can only for the group of all ranks.
    parameters, are_sparse = model._build_params_for_reducer()
    names = model._build_debug_param_to_name_mapping(parameters)
    model._ddp_init_helper(parameters, are_sparse, names, model.static_graph)
    if model.static_graph:
        model.reducer._set_static_graph()
        model.logger._set_static_graph()
    for hook, state in getattr(model, "_comm_hooks", ()):
        dist._register_comm_hook(model.reducer, state, hook)
