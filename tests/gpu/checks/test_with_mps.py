"""Ranks that share a GPU with NVIDIA's Multi-Process Service; last, since it serves the machine."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator

import pytest

import jupyter_sky as sky
from tests.gpu.figures import Check
from tests.gpu.machine import GPUMachine

FOLDER = f"/tmp/nvidia-mps-{os.getuid()}"


@pytest.fixture
def control(gpu: GPUMachine) -> Iterator[Callable[[str], str]]:
    if shutil.which("nvidia-cuda-mps-control") is None:
        pytest.skip("this machine has no nvidia-cuda-mps-control")

    def ask(command: str) -> str:
        env = {**os.environ, "CUDA_MPS_PIPE_DIRECTORY": FOLDER}
        done = subprocess.run(
            ["nvidia-cuda-mps-control"], input=command, env=env, capture_output=True, text=True
        )
        return done.stdout.strip()

    yield ask
    ask("quit -t 5")


@sky.compute
def share() -> tuple[int, float]:
    import torch

    x = torch.ones(2**20, device="cuda")
    units = torch.cuda.get_device_properties(0).multi_processor_count
    return units, x.sum().item()


def test_ranks_share_a_gpu_with_mps(control: Callable[[str], str], check: Check) -> None:
    plugins = [sky.plugins.mps(active_thread_percentage=25), sky.plugins.torch()]
    with sky.ComputePool(procs_per_node=2, plugins=plugins) as pool:
        (units, total), other = share() @ pool
        servers = control("get_server_list").split()
    assert (units, total) == other
    assert total == 2**20
    assert servers
    check.note(f"a rank has {units} multiprocessors")
