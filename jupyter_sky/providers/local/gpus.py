"""The GPUs of this computer."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from itertools import takewhile
from pathlib import Path
from typing import NamedTuple

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import Accelerator

_DRIVER = Path(
    "/proc/driver/nvidia"
)  # exists even if a container lacks NVIDIA's management library
_NAME = re.compile(r"\d+|(GPU|MIG)-[\w/-]+")


class GPU(NamedTuple):
    """A GPU: its id in ``CUDA_VISIBLE_DEVICES``, and the driver's name for it."""

    id: str
    name: str

    def variables(self) -> dict[str, str]:
        """Return the environment variables with which a process sees only this GPU."""
        found = {"CUDA_VISIBLE_DEVICES": self.id}
        if "CUDA_VISIBLE_DEVICES" not in os.environ:
            # The number is the driver's; CUDA's default order begins with the fastest.
            found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        return found


def visible_gpus(wanted: Accelerator | None = None) -> list[GPU]:
    """Return the NVIDIA GPUs that this process may use, optionally only those that match."""
    found = _visible_gpus()
    return found if wanted is None else [gpu for gpu in found if wanted.fits(gpu.name)]


def _visible_gpus() -> list[GPU]:
    known = _all_gpus()
    allowed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if allowed is None:
        return [GPU(str(number), name) for number, (_, name) in enumerate(known)]
    if not known and not _DRIVER.exists():
        return []
    # As in CUDA, the first invalid entry ends the list, like -1 and NoDevFiles.
    ids = takewhile(_NAME.fullmatch, (each.strip() for each in allowed.split(",")))
    return [GPU(each, _name(each, known)) for each in ids]


def _name(device: str, known: Sequence[tuple[str, str]]) -> str:
    if device.isdigit():
        return dict(enumerate(name for _, name in known)).get(int(device), "GPU")
    return next((name for uuid, name in known if uuid.startswith(device)), "GPU")


def check_gpus(wanted: Accelerator, nodes: int) -> None:
    """Refuse more GPUs than there are.

    Raises
    ------
    UsageError
        With the GPUs of this computer.
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


def _all_gpus() -> list[tuple[str, str]]:
    """Return UUID and name of each GPU in the driver's order, which is the bus order."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return []
    try:
        handles = map(pynvml.nvmlDeviceGetHandleByIndex, range(pynvml.nvmlDeviceGetCount()))
        return [
            (str(pynvml.nvmlDeviceGetUUID(each)), str(pynvml.nvmlDeviceGetName(each)))
            for each in handles
        ]
    finally:
        pynvml.nvmlShutdown()
