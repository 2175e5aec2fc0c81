"""NVIDIA MIG: parts of a GPU, each with memory and compute units of its own, one for each rank."""

from __future__ import annotations

import re
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from jupyter_sky.api.instance import InstanceInfo
from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.plugins._environment import environment

# Root on rented instances and in containers; elsewhere, a user with passwordless sudo.
_NVIDIA_SMI = "$([ $(id -u) = 0 ] || echo sudo -n) nvidia-smi"
_INSTANCE = re.compile(r"\(UUID: (MIG-[^)]+)\)")


def mig(profile: str) -> Plugin:
    """Divide the GPUs of each node into parts, and give each rank one of them.

    The cluster says how many ranks a node has, as in ``procs_per_node=2``. The parts stay when the
    cluster ends; ``nvidia-smi mig -dci; nvidia-smi mig -dgi`` removes them. This was tested with
    recorded output of ``nvidia-smi``, not on a GPU.

    Parameters
    ----------
    profile
        Size of a part, as ``nvidia-smi mig -lgip`` lists them: ``"1g.10gb"``, ``"3g.40gb"``.

    Raises
    ------
    UsageError
        If ``profile`` is invalid.
    """
    if not isinstance(profile, str) or not re.fullmatch(r"[1-7]g\.\d+gb(\+\w+)?", profile):
        raise UsageError(f'profile={profile!r} is no part of a GPU: type one like "3g.40gb".')
    return Plugin("mig", bootstrap=partial(_divide, profile=profile), around_process=_with_own_part)


def _divide(cluster: Any, profile: str) -> list[str]:
    ranks = cluster.spec.procs_per_node
    if ranks is None:
        raise UsageError("the mig plugin needs procs_per_node: it makes one part for each rank.")
    gpus = cluster.spec.wanted_gpus.count if cluster.spec.wanted_gpus else 1
    parts = ",".join([profile] * -(-ranks // gpus))  # on each GPU
    return [
        f"{_NVIDIA_SMI} -mig 1",
        f"[ $(nvidia-smi -L | grep -c MIG-) -ge {ranks} ] || {_NVIDIA_SMI} mig -cgi {parts} -C",
    ]


@contextmanager
def _with_own_part(info: InstanceInfo) -> Iterator[None]:
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout
    parts = _INSTANCE.findall(listed)
    if len(parts) < info.local_world_size:
        raise SkyError(
            f"this node has {len(parts)} MIG devices for {info.local_world_size} ranks: "
            "see what `nvidia-smi -L` lists, and take a smaller profile."
        )
    with environment({"CUDA_VISIBLE_DEVICES": parts[info.local_rank]}):
        yield
