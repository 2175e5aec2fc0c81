"""NVIDIA MPS: ranks that share a GPU run their kernels on it at the same time."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial
from typing import Any

from jupyter_sky.api.plugin import Plugin
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.spec import Image

# Private to this user, and refused if another user has made it.
_FOLDER = "/tmp/nvidia-mps-$(id -u)"
_START = f"""folder={_FOLDER}
mkdir -p -m 700 "$folder/log" && [ -O "$folder" ] && chmod 700 "$folder" || exit
export CUDA_MPS_PIPE_DIRECTORY="$folder" CUDA_MPS_LOG_DIRECTORY="$folder/log"
echo get_server_list | nvidia-cuda-mps-control || nvidia-cuda-mps-control -d"""


def mps(
    active_thread_percentage: int | None = None, pinned_memory_limit: str | None = None
) -> Plugin:
    """Start NVIDIA's Multi-Process Service on each node, for ranks that share a GPU.

    It stays when the cluster ends; ``echo quit | nvidia-cuda-mps-control`` ends it, with its folder
    in ``CUDA_MPS_PIPE_DIRECTORY``.

    Parameters
    ----------
    active_thread_percentage
        How much of a GPU's compute units one rank may use, from 1 to 100.
    pinned_memory_limit
        How much of a GPU's memory one rank may use, by the GPU's number: ``"0=2G"``.

    Raises
    ------
    UsageError
        If an argument is invalid.
    """
    env = {}
    if (share := active_thread_percentage) is not None:
        if not isinstance(share, int) or not 1 <= share <= 100:
            raise UsageError(f"active_thread_percentage={share!r}: type a number from 1 to 100.")
        env["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = str(share)
    if pinned_memory_limit is not None:
        if not re.fullmatch(r"\d+=\d+[MG](,\d+=\d+[MG])*", str(pinned_memory_limit)):
            raise UsageError(
                f'pinned_memory_limit={pinned_memory_limit!r}: type GPU and limit, like "0=2G".'
            )
        env["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = pinned_memory_limit
    return Plugin("mps", transform=partial(_connect, env=env), bootstrap=lambda cluster: [_START])


def _connect(image: Image, cluster: Any, env: dict[str, str]) -> Image:
    where = {
        "CUDA_MPS_PIPE_DIRECTORY": f"echo {_FOLDER}",
        "CUDA_MPS_LOG_DIRECTORY": f"echo {_FOLDER}/log",
    }
    return replace(image, env={**image.env, **env}, shell_vars={**image.shell_vars, **where})
