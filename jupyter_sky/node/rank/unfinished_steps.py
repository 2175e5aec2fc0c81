"""Steps of training that an error has cut off: what torch keeps of them on each rank is dropped.

FSDP2 remembers where in an iteration a model is. Where a Stop or an error ends one, that differs
from rank to rank: the next iteration would gather parameters that other ranks do not send, which
ends a process, or would take the last one to be still on its way, and train nothing.
"""

from __future__ import annotations

import contextlib
import gc
import sys
from typing import Any

_CUT_OFF = (
    "A model under FSDP2 was cut off in the middle of a step. Before torch 2.13, it cannot go on: "
    "make it again. `sky.save` saves its weights, and `sky.load` gives them to the new one."
)


def drop_unfinished_steps() -> None:
    """Let models under FSDP2 begin anew with their next iteration, or say that they cannot."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    # Torch makes a class for the modules that it shards, of each class that they had.
    classes = set(kind.__subclasses__() if kind else ())
    if not classes:  # nothing is sharded: the objects, of which there may be millions, stay alone
        return
    models = [each for each in gc.get_objects() if type(each) in classes]
    if not hasattr(kind, "reset_iter_state"):
        if any(map(_is_in_a_step, models)):
            print(_CUT_OFF, file=sys.stderr)
        return
    for model in models:
        # Inner ones are refused, and one with an unfinished gather that has failed fails with it.
        with contextlib.suppress(Exception):
            model.reset_iter_state()


def _is_in_a_step(model: Any) -> bool:
    with contextlib.suppress(AttributeError):  # it has a name for this in all releases until 2.13
        return str(model._get_fsdp_state()._training_state.name) != "IDLE"
    return False
