"""A DDP training loop, the same under ``torchrun`` and in a ``%%sky`` cell.

It prints its speed where each process is one of ``torchrun``:
``python -m torch.distributed.run --nproc-per-node 4 -m tests.benchmarks.cases.workloads.ddp``.
"""

from __future__ import annotations

import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

SIZE = 16384
BATCH = 32
WARM_UP = 10
STEPS = 100


def train(batch: int = BATCH) -> tuple[float, float]:
    """Train in the group that is there.

    Parameters
    ----------
    batch
        Samples of each rank in a step.

    Returns
    -------
    tuple
        Samples a second, and milliseconds of processor time a sample, of all ranks together.
    """
    # With more, one of the two that are compared could use the processors better than the other.
    assert torch.get_num_threads() == 1
    torch.manual_seed(0)
    loader = _loader(batch)
    model = DistributedDataParallel(_network())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    batches = _endless(loader)

    def steps(count: int) -> None:
        for _ in range(count):
            images, labels = next(batches)
            optimizer.zero_grad()
            criterion(model(images), labels).backward()
            optimizer.step()
        dist.barrier()

    steps(WARM_UP)
    started, used = time.monotonic(), time.process_time()
    steps(STEPS)
    taken, processor = time.monotonic() - started, torch.tensor(time.process_time() - used)
    dist.all_reduce(processor)
    samples = dist.get_world_size() * batch * STEPS
    return samples / taken, 1000 * processor.item() / samples


def _network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 64, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 14 * 14, 128),
        nn.ReLU(),
        nn.Linear(128, 10),
    )


def _loader(batch: int) -> DataLoader:
    """Made-up digits: each class a pattern of its own, under noise."""
    labels = torch.randint(10, (SIZE,))
    patterns = torch.rand(10, 1, 28, 28)
    images = patterns[labels] + 0.3 * torch.randn(SIZE, 1, 28, 28)
    data = TensorDataset(images, labels)
    return DataLoader(data, batch, sampler=DistributedSampler(data), drop_last=True)


def _endless(loader: DataLoader):
    epoch = 0
    while True:
        loader.sampler.set_epoch(epoch)
        yield from loader
        epoch += 1


def main() -> None:
    """Be one process of ``torchrun``."""
    dist.init_process_group("gloo")
    figures = train()
    if dist.get_rank() == 0:
        print(*figures)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
