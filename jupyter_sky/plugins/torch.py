"""PyTorch: its wheels on the nodes, and its process group around the ranks."""

from __future__ import annotations

import re
from functools import partial
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.plugins._process_group import Backend, check_backend, process_group
from jupyter_sky.providers.spec import Accelerator, Image, PipIndex

_WHEELS = "https://download.pytorch.org/whl"


def torch(
    backend: Backend | None = None,
    cuda: str = "cu128",
    version: str = "latest",
    vision: str | None = None,
    audio: str | None = None,
    *,
    deadline: float = 60.0,
    single_rank: bool = False,
) -> Plugin:
    """Install PyTorch on the nodes, and form its process group on the ranks.

    Parameters
    ----------
    backend
        ``"nccl"`` or ``"gloo"``; ``None`` takes NCCL where each rank has a GPU, and gloo elsewhere.
    cuda
        Which wheels to take for nodes with an NVIDIA GPU; other nodes take those for the CPU.
    version
        ``"latest"``, a version like ``"2.3.0"``, or a constraint like ``">=2.3"``.
    vision, audio
        The same for torchvision and torchaudio; ``None`` leaves them out.
    deadline
        Seconds to wait for all ranks when the process group is formed.
    single_rank
        Form a group of one where the cluster has a single rank, as ``torchrun`` does. Cells have
        it, so that they run on any number of ranks.

    Raises
    ------
    UsageError
        When an argument is not of that kind.
    """
    check_backend(backend)
    if not isinstance(cuda, str) or not re.fullmatch(r"cu\d{3}", cuda):
        raise UsageError(
            f'cuda={cuda!r} is not a CUDA build of PyTorch: type one like cuda="cu128".'
        )
    if not isinstance(deadline, int | float) or deadline <= 0:
        raise UsageError(f"deadline={deadline!r} is not a time: type seconds, like deadline=60.")
    versions = {"torch": version, "torchvision": vision, "torchaudio": audio}
    packages = {
        name: requirement(name, wanted) for name, wanted in versions.items() if wanted is not None
    }
    return Plugin(
        "torch",
        transform=partial(_install_torch, cuda=cuda, packages=packages),
        around_app=partial(
            process_group, backend=backend, deadline=deadline, single_rank=single_rank
        ),
        preload=("torch",),
    )


def _install_torch(image: Image, cluster: Any, cuda: str, packages: dict[str, str]) -> Image:
    channel = cuda if _runs_cuda(cluster.spec.accelerator, cuda) else "cpu"
    index = PipIndex(f"{_WHEELS}/{channel}", packages=tuple(packages))
    return install(image, list(packages.values()), index)


def _runs_cuda(accelerator: Accelerator | str | None, cuda: str) -> bool:
    match accelerator:
        case str():
            return _runs_cuda(accelerators.parse(accelerator), cuda)
        case Accelerator(name=name, cuda=str(newest)):
            major = newest.partition(".")[0]
            if int(cuda[2:4]) > int(major):
                raise UsageError(
                    f"wheels for {cuda} do not run on {name}, which supports CUDA up to {newest}: "
                    f'type the newest cuda="cu{major}…" that PyTorch has.'
                )
            return True
        case _:
            return False
