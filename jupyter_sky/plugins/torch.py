"""PyTorch: its wheels on the nodes, and its process group around the ranks."""

from __future__ import annotations

import contextlib
import importlib.metadata
import re
from collections.abc import Sequence
from functools import partial
from typing import Any

from jupyter_sky.api import accelerators
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.plugins._install import install, requirement
from jupyter_sky.plugins.torch_group.agreement import Backend
from jupyter_sky.plugins.torch_group.formation import check_backend, process_group
from jupyter_sky.providers.spec import Accelerator, Image, PipIndex

_WHEELS = "https://download.pytorch.org/whl"
_BESIDE = ("torchvision", "torchaudio")  # each is built for one build of torch


def torch(
    backend: Backend | None = None,
    cuda: str | None = None,
    version: str = "latest",
    vision: str | None = None,
    audio: str | None = None,
    *,
    deadline: float = 60.0,
    single_rank: bool = False,
) -> Plugin:
    """Install PyTorch on the nodes, and form its process group on the ranks.

    The group spans all ranks, so that only calls by ``@`` may use collectives, as DDP does: a
    single call, as by ``>>``, ``&``, ``gather`` or ``pool.map``, would wait for the others.

    Parameters
    ----------
    backend
        ``"nccl"`` or ``"gloo"``; ``None`` for NCCL if each rank has a GPU, with gloo for tensors on
        the processor, and gloo otherwise. Groups of ``dist.new_group()`` have NCCL alone.
    cuda
        The wheels for nodes with an NVIDIA GPU, like ``"cu128"``; by default, those of this version
        that fit the GPU. Other nodes use those for the CPU.
    version
        ``"latest"`` for the notebook's version, or the newest if it has none; a version like
        ``"2.3.0"``; or a constraint like ``">=2.3"``.
    vision, audio
        The same for torchvision and torchaudio; ``None`` leaves them out.
    deadline
        Seconds to wait for all ranks when the process group is formed.
    single_rank
        Form a group of one if the cluster has a single rank, as ``torchrun`` does. This is set for
        cells, so that they run on any number of ranks.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    check_backend(backend)
    if cuda is not None and not re.fullmatch(r"cu\d{3}", str(cuda)):
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
        connects="torch",
    )


def _install_torch(image: Image, cluster: Any, cuda: str | None, packages: dict[str, str]) -> Image:
    accelerator = accelerators.as_accelerator(cluster.spec.accelerator)
    from jupyter_sky.providers.packages import package_name  # not on ranks

    pinned = [each for each in image.pins if package_name(each) == "torch"]
    version, build = _version_of([*image.pip, packages.get("torch", ""), *pinned])
    own = cuda or (build if build.startswith("cu") else None)
    beside = [each for each in map(package_name, image.pins) if each in _BESIDE]
    names = tuple(dict.fromkeys([*packages, *beside]))
    if accelerator is None:
        # Only the names of hosts are known: some may have GPUs.
        with_gpu = own or wheels_for(version, None)
        index = PipIndex(f"{_WHEELS}/cpu", names, cuda_url=f"{_WHEELS}/{with_gpu}")
    else:
        index = PipIndex(f"{_WHEELS}/{_channel(accelerator, version, cuda, own)}", names)
    return install(image, list(packages.values()), index)


def _channel(accelerator: Accelerator, version: str, asked: str | None, own: str | None) -> str:
    """Return which wheels to use for an accelerator: the requested ones, or the notebook's."""
    if accelerator.cuda is None:
        return "cpu"
    major = int(accelerator.cuda.partition(".")[0])
    chosen = own if own and int(own[2:4]) <= major else wheels_for(version, major)
    chosen = asked or chosen
    if int(chosen[2:4]) > major:
        raise UsageError(
            f"wheels for {chosen} do not run on {accelerator.name}, which supports CUDA up to "
            f'{accelerator.cuda}: type the newest cuda="cu{major}…" that PyTorch has.'
        )
    return chosen


_BUILDS = (
    # These exist from this version on.
    ((2, 12), ("cu130", "cu126")),
    ((2, 7), ("cu128",)),
    ((2, 6), ("cu126",)),
    ((2, 4), ("cu124",)),
    ((2, 1), ("cu121",)),
    ((2, 0), ("cu118",)),
)


def wheels_for(version: str, major: int | None) -> str:
    """Return the CUDA build of a version of PyTorch for a GPU.

    Parameters
    ----------
    version
        The version; empty for the newest one of the usual build.
    major
        The last CUDA version that supports the GPU; ``None`` if the GPU is not known.
    """
    numbers = tuple(int(each) for each in re.findall(r"\d+", version)[:2])
    builds = next((names for since, names in _BUILDS if numbers >= since), ("cu118",))
    if not numbers:
        builds = ("cu128",)
    newest = 12 if major is None else major
    return next((each for each in builds if int(each[2:4]) <= newest), builds[-1])


_VERSION = re.compile(r"torch\s*===?\s*([\d.]+)[^+,;]*(?:\+(\w+))?", re.IGNORECASE)


def _version_of(requirements: Sequence[str]) -> tuple[str, str]:
    """Return the first requested version of torch, and its build, if any."""
    for each in requirements:
        if found := _VERSION.match(each):
            return found[1], found[2] or _build_here(found[1])
    return "", ""


def _build_here(version: str) -> str:
    """Return the kind of the notebook's build, if it has this version of torch."""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        here, _, build = importlib.metadata.version("torch").partition("+")
        return build if here == version else ""
    return ""
