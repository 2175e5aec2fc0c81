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
from collections.abc import Iterator
from types import CellType, MemberDescriptorType
from typing import Any

from jupyter_sky.plugins.torch_group import replicas
from jupyter_sky.serialization.models.instances import instances


def replace(former: Any, new: Any) -> None:
    """Let a group take the place of another one of the same ranks, on this rank.

    Parameters
    ----------
    former
        The group that was destroyed.
    new
        The one that was formed since.
    """
    if (former.rank(), former.size()) != (new.rank(), new.size()):
        # The cluster was scaled: what was made for another number of ranks is made again.
        forget_accelerate()
        return
    for holder in gc.get_referrers(former):
        with contextlib.suppress(Exception):  # of a class of the user's
            _replace_in(holder, former, new)
    from torch.nn.parallel import DistributedDataParallel

    [models] = instances((DistributedDataParallel,))
    for each in models:
        if each.__dict__.get("reducer"):
            with contextlib.suppress(Exception):  # its first use says what is wrong
                _renew(each, new)


def forget_accelerate() -> None:
    """Let the next `Accelerator` look at the group and its settings again."""
    if "accelerate.state" in sys.modules:
        from accelerate.state import AcceleratorState

        AcceleratorState._reset_state(reset_partial_state=True)


def _replace_in(holder: Any, former: Any, new: Any) -> None:
    if isinstance(holder, CellType):
        holder.cell_contents = new
        return
    if not isinstance(holder, dict | list):
        for name in _slots(type(holder)):
            if getattr(holder, name, None) is former:
                setattr(holder, name, new)
        holder = holder.__dict__
    places = holder.items() if isinstance(holder, dict) else enumerate(holder)
    for place in [place for place, value in places if value is former]:
        holder[place] = new


def _slots(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        for name, member in vars(base).items():
            if isinstance(member, MemberDescriptorType):
                yield name


def _renew(model: Any, group: Any) -> None:
    """Let a DistributedDataParallel begin its next step, with its own group."""
    import torch.distributed as dist

    if model.process_group is not group:
        return
    model.__setstate__(model.__getstate__())
    for hook, state in getattr(model, "_comm_hooks", ()):
        dist._register_comm_hook(model.reducer, state, hook)
    replicas.make_equal_at_next_step(model)
