"""The user's hooks that ranks call when a node is about to be taken away."""

from __future__ import annotations

import os
import traceback
from typing import TypeVar

from jupyter_sky.errors import UsageError
from jupyter_sky.transport import preemption
from jupyter_sky.transport.preemption import Hook

F = TypeVar("F", bound=Hook)


def on_interruption(function: F) -> F:
    """Call a function on this rank when a node of the cluster is about to be taken away.

    AWS announces this two minutes before it takes a spot instance back, instances two minutes
    before ``--max-cost`` is spent, and Slurm before a job ends: time to save what would be lost. If
    it was announced already, the function is called at once. Every rank of the cluster calls its
    function, in a separate thread, while the code that the rank was running is paused for up to a
    minute. A function replaces an earlier one of the same name.

    Parameters
    ----------
    function
        Called with a `jupyter_sky.Interruption`, or without arguments if it takes none. It cannot
        use collectives, since other ranks are paused wherever they are.

    Raises
    ------
    UsageError
        If this is not called on a rank, or the decorated object is not a function.

    Examples
    --------
    In a cell that begins with ``%%sky``:

    >>> @sky.on_interruption
    ... def save():
    ...     if sky.instance_info().is_head:
    ...         torch.save(model.state_dict(), "/efs/model.pt")
    """
    if not callable(function):
        raise UsageError("type `@sky.on_interruption` above a function, without parentheses.")
    if "COMPUTE_POOL" not in os.environ:
        raise UsageError(
            "@sky.on_interruption is for the nodes: write it in a cell that begins with %%sky."
        )
    name = getattr(function, "__qualname__", repr(function))
    preemption.hooks[:] = [
        hook for hook in preemption.hooks if getattr(hook, "__qualname__", repr(hook)) != name
    ]
    preemption.hooks.append(function)
    if notice := preemption.pending():
        try:
            preemption.call(function, notice)
        except Exception:  # as for a later notice: the cell continues
            traceback.print_exc()
    return function
