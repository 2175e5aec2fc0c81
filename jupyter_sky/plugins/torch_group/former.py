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
from types import CellType, MemberDescriptorType
from typing import Any

from jupyter_sky.serialization.instances import instances


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
    # The namespace is as old as the fork server, whose objects are kept away from the collector.
    for holder in [vars(sys.modules["__main__"]), *gc.get_referrers(*formers)]:
        if holder is not formers:
            with contextlib.suppress(Exception):  # of a class of the user's
                _replace_in(holder, found)
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


def _replace_in(holder: Any, new: dict[int, Any]) -> None:
    """Replace what an object refers to by what there is for its id."""
    if isinstance(holder, CellType):
        holder.cell_contents = new[id(holder.cell_contents)]
        return
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
