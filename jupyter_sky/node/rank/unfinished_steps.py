"""Steps of training that were cut off: what torch keeps of them on each rank is dropped.

FSDP remembers where in an iteration a model is. Where a Stop or an error ends one, that differs
from rank to rank: the next iteration would gather parameters that other ranks do not send, which
ends a process, or would take the last one to be still on its way, and train nothing.

A loader of data with ``persistent_workers`` keeps its processes, also those that Stop has ended.
"""

from __future__ import annotations

import contextlib
import sys
from functools import partial
from typing import Any

from jupyter_sky.serialization.instances import instances

_CUT_OFF = (
    "A model under FSDP2 was cut off in the middle of a step. Before torch 2.13, it cannot go on: "
    "make it again. `sky.save` saves its weights, and `sky.load` gives them to the new one."
)


def drop_unfinished_steps(interrupted: bool) -> None:
    """Let models under FSDP and loaders of data begin anew, or say that they cannot.

    Parameters
    ----------
    interrupted
        Whether processes of this rank got the interrupt that ended the run, too.
    """
    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    data: Any = sys.modules.get("torch.utils.data")
    if data is None:  # all objects, of which there may be millions, stay alone
        return
    # Torch makes a class for the modules that FSDP2 shards, of each class that they had.
    kind: Any = getattr(fsdp, "FSDPModule", None)
    loaders, of_fsdp1, of_fsdp2 = instances(
        (data.DataLoader,),
        (fsdp.FullyShardedDataParallel,) if fsdp else (),
        tuple(kind.__subclasses__()) if kind else (),
    )
    _reset_fsdp2(kind, of_fsdp2)
    for reset, objects in (
        (_reset_fsdp1, of_fsdp1),
        (partial(_reset_loader, interrupted=interrupted), loaders),
    ):
        for each in objects:
            with contextlib.suppress(Exception):  # its next use says what is wrong
                reset(each)


def _reset_loader(loader: Any, interrupted: bool) -> None:
    """Let a loader with ``persistent_workers`` start others, where an interrupt has ended them."""
    workers = getattr(loader._iterator, "_workers", ())
    if workers and (interrupted or not all(each.is_alive() for each in workers)):
        loader._iterator = None


def _reset_fsdp2(kind: Any, models: list[Any]) -> None:
    if not hasattr(kind, "reset_iter_state"):
        if any(map(_is_in_a_step, models)):
            print(_CUT_OFF, file=sys.stderr)
        return
    for model in models:
        # Inner ones are refused, and one with an unfinished gather that has failed fails with it.
        with contextlib.suppress(Exception):
            _note_gathered(model)
            model.reset_iter_state()


def _note_gathered(model: Any) -> None:
    """Have torch drop what an interrupt between two parameters of a group has left gathered."""
    for state in model._get_fsdp_state()._state_ctx.all_states:
        for group in state._fsdp_param_groups:
            states = {each.sharded_state for each in group.fsdp_params}
            for each in states - {type(group._sharded_state).SHARDED}:
                group._sharded_state = each


def _reset_fsdp1(model: Any) -> None:
    """Do what torch does after a backward pass: the parameters are sharded, and nothing is awaited.

    The gradients of the step are not kept: some are those of one rank, and some of all.
    """
    states = model._all_fsdp_states if model._is_root else ()
    handles = [each._handle for each in states if each._handle]
    if all(each.training_state.name == "IDLE" for each in states) and all(
        each._training_state.name == "IDLE" for each in handles
    ):
        return
    for state in states:
        state.training_state = type(state.training_state).IDLE
    for handle in handles:
        _drop_gradients(handle.flat_param)
        handle._training_state = type(handle._training_state).IDLE
        # A gather that was cut off has the memory for the parameters, without their values.
        handle.reshard(handle.uses_sharded_strategy and not handle.needs_unshard())
        handle._ran_pre_backward_hook = False
        handle._needs_pre_backward_unshard = False
        handle._post_forward_index = None
        handle._prefetched = False
    model._exec_order_data.next_iter()
    model._post_backward_callback_queued = False


def _drop_gradients(parameter: Any) -> None:
    if hasattr(parameter, "_post_backward_hook_state"):
        parameter._post_backward_hook_state[-1].remove()
        del parameter._post_backward_hook_state
    if hasattr(parameter, "_saved_grad_shard"):
        del parameter._saved_grad_shard
    parameter._post_backward_called = False
    for each in (parameter, *(parameter._params or ())):
        each.grad = None


def _is_in_a_step(model: Any) -> bool:
    with contextlib.suppress(AttributeError):  # it has a name for this in all releases until 2.13
        return str(model._get_fsdp_state()._training_state.name) != "IDLE"
    return False
