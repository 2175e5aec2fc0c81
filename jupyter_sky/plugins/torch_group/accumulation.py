"""How many batches Accelerate has accumulated since its last step, which ranks count on their own.

A run may be cut off after different batches on different ranks. Each would make its next step, for
which it waits for the others, after another batch from then on.
"""

from __future__ import annotations

import contextlib

from jupyter_sky.plugins.torch_group.trained import Trained


def accumulated(trained: Trained) -> list[int]:
    """Return what each `Accelerator` of this rank has counted."""
    return sorted(each.step for each in trained.accelerators)


def drop_accumulated(trained: Trained) -> None:
    """Let each `Accelerator` begin a step, without gradients; all ranks call this."""
    for accelerator in trained.accelerators:
        accelerator.step = 0
        with contextlib.suppress(Exception):  # of a class of the user's
            for optimizer in accelerator._optimizers:
                for parameter in (one for part in optimizer.param_groups for one in part["params"]):
                    parameter.grad = None
