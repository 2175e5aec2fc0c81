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


def drop_unfinished_steps() -> None:
    """Let models under FSDP2 begin anew with their next iteration."""
    kind: Any = getattr(sys.modules.get("torch.distributed.fsdp"), "FSDPModule", None)
    if not hasattr(kind, "reset_iter_state"):  # before torch 2.13
        return
    # Not with `isinstance`, which would run code of proxy objects.
    models = [each for each in gc.get_objects() if issubclass(type(each), kind)]
    for model in models:
        # Inner ones are refused, and one with an unfinished gather that has failed fails with it.
        with contextlib.suppress(Exception):
            model.reset_iter_state()
