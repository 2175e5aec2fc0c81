"""The GPUs of this computer."""

from __future__ import annotations

import os
from typing import NamedTuple

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import Accelerator


class GPU(NamedTuple):
    """A GPU, by what ``CUDA_VISIBLE_DEVICES`` calls it, and by its driver's name for it."""

    id: str
    name: str


def visible_gpus() -> list[GPU]:
    """Return the NVIDIA GPUs that this process may use."""
    names = _all_gpus()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return [GPU(str(number), name) for number, name in enumerate(names)]
    ids = [each.strip() for each in allowed.split(",") if each.strip() not in ("", "-1")]
    known = dict(enumerate(names))
    return [GPU(each, known.get(int(each), "") if each.isdigit() else "GPU") for each in ids]


def check_gpus(wanted: Accelerator, nodes: int) -> None:
    """Refuse more GPUs than there are.

    Raises
    ------
    UsageError
        With what this computer has.
    """
    names = [gpu.name for gpu in visible_gpus()]
    name, count = wanted.name, wanted.count
    fitting = [gpu for gpu in names if wanted.fits(gpu)]
    if len(fitting) < count * nodes:
        here = ", ".join(sorted(set(names))) or "no GPU"
        some = f"{len(fitting)} of them" if fitting else here
        raise UsageError(
            f"{count * nodes} × {name} was asked for, but this machine has {some}: "
            "leave the GPU out to use what is here."
        )


def _all_gpus() -> list[str]:
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [str(pynvml.nvmlDeviceGetName(handle)) for handle in handles]
    finally:
        pynvml.nvmlShutdown()
