"""What a rank trains: models, and what makes their steps."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from typing import Any, NamedTuple

from jupyter_sky.serialization.instances import instances


class Trained(NamedTuple):
    """What there is in this process.

    Attributes
    ----------
    models
        Models of which several ranks may have the same: under DistributedDataParallel, and those
        that `fully_shard` has sharded, without their parts.
    of_fsdp1
        Models, and parts of them, under FullyShardedDataParallel.
    optimizers
        Those that have a state of their own: wrappers have that of what they wrap.
    schedulers, scalers
        Schedulers of learning rates, and GradScalers that do something.
    accelerators
        Those of Accelerate.
    """

    models: list[Any]
    of_fsdp1: list[Any]
    optimizers: list[Any]
    schedulers: list[Any]
    scalers: list[Any]
    accelerators: list[Any]


def find() -> Trained:
    """Return what this process trains; where it does, that takes some hundredths of a second."""
    from torch.amp import GradScaler
    from torch.nn.parallel import DistributedDataParallel
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler

    fsdp: Any = sys.modules.get("torch.distributed.fsdp")
    # An import that was cut off has left a module without its class.
    accelerator = getattr(sys.modules.get("accelerate.accelerator"), "Accelerator", None)
    # Torch makes a class for the modules that it shards, of each class that they had.
    sharded = fsdp.FSDPModule.__subclasses__() if fsdp else ()
    kinds: tuple[tuple[type, ...], ...] = (
        (DistributedDataParallel, *sharded),
        (fsdp.FullyShardedDataParallel,) if fsdp else (),
        (Optimizer,),
        (LRScheduler,),
        (GradScaler,),
        (accelerator,) if accelerator else (),
    )
    found = Trained(*_without_garbage(instances(*kinds)))
    return Trained(
        [each for each in found.models if _is_whole(each)],
        found.of_fsdp1,
        [each for each in found.optimizers if "state" in vars(each)],
        found.schedulers,
        [each for each in found.scalers if each.is_enabled()],
        [each for each in found.accelerators if "step" in vars(each)],
    )


def _without_garbage(found: list[list[Any]]) -> list[list[Any]]:
    """Return what is not only there because it refers to itself, as what earlier cells have made.

    To look for it anew among all objects would take as long again.
    """
    if not any(found):
        return found
    known = [[*map(weakref.ref, group)] for group in found]
    found.clear()
    gc.collect()
    return [[each for each in (ref() for ref in refs) if each is not None] for refs in known]


def _is_whole(model: Any) -> bool:
    """Return whether a model is neither half made nor a part of one that is sharded as a whole."""
    if not hasattr(model, "_get_fsdp_state"):
        return bool(vars(model).get("reducer"))
    with contextlib.suppress(Exception):  # a copy, which has no state of its own
        return model._get_fsdp_state()._is_root is not False
    return False
