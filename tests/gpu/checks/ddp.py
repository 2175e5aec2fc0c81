"""A DDP training loop on GPUs, the same under ``torchrun`` and in a cell."""

from __future__ import annotations

import os
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

BATCH = 256
WARM_UP, STEPS = 20, 300


def train() -> float:
    """Train in the group that is there; return the samples a second of all ranks together."""
    device = torch.device("cuda", torch.cuda.current_device())
    torch.manual_seed(0)
    layers = [nn.Conv2d(3, 64, 3, padding=1), nn.ReLU()]
    for _ in range(4):
        layers += [nn.Conv2d(64, 64, 3, padding=1), nn.BatchNorm2d(64), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
    model = DistributedDataParallel(nn.Sequential(*layers, *head).to(device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    images = torch.randn(BATCH, 3, 32, 32, device=device)
    labels = torch.randint(10, (BATCH,), device=device)

    def steps(count: int) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        torch.cuda.synchronize()
        dist.barrier()

    steps(WARM_UP)
    began = time.monotonic()
    steps(STEPS)
    return dist.get_world_size() * BATCH * STEPS / (time.monotonic() - began)


def main() -> None:
    """Be one process of ``torchrun``."""
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group("nccl", device_id=torch.device("cuda", torch.cuda.current_device()))
    speed = train()
    if dist.get_rank() == 0:
        print(speed)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
