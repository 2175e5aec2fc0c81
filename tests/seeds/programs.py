"""The examples of the documents, made whole: what they leave out is given around them.

A line like ``<< plugin 0 >>`` stands for that block of that document. What is around it is ours:
names that the example takes from elsewhere, the rest of a function of which it shows a part, and
what has to come of it. Each program is a script of its own.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tests.seeds.documents import blocks, local

_PLACE = re.compile(r"^( *)<< (\w+) (\d+) >>$", flags=re.MULTILINE)


@dataclass(frozen=True)
class Program:
    """A script around examples.

    Parameters
    ----------
    text
        The script, with places for blocks.
    prints
        A regular expression for all of what it prints.
    """

    text: str
    prints: str

    @property
    def places(self) -> list[tuple[str, int]]:
        """The blocks that it runs."""
        return [(document, int(number)) for _, document, number in _PLACE.findall(self.text)]

    def script(self, gpu: bool) -> str:
        """Return the script with the blocks in it."""

        def block(place: re.Match[str]) -> str:
            indent, document, number = place.groups()
            lines = local(blocks(document)[int(number)], gpu).splitlines()
            return "\n".join(f"{indent}{line}" if line else "" for line in lines)

        return _PLACE.sub(block, self.text)


_EPOCHS = "".join(rf"Epoch {epoch}: loss=\d+\.\d+\n" for epoch in range(10))
_RANKS = "".join(rf"Rank {rank}: loss=\d+\.\d+\n" for rank in range(4))

# The documents end where the loop begins: this is what is between their blocks.
_GUIDE = """\
    import torch
    import torch.distributed as dist
    import torch.nn as nn
    from torch.nn.parallel import DistributedDataParallel as DDP
    from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

    info = sky.instance_info()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(info.rank)
    << guide 2 >>
    << guide 3 >>
    assert isinstance(model, DDP)
    << guide 4 >>
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        epoch_loss = correct = total = 0
        for batch, truth in loader:
            optimizer.zero_grad()
            scores = model(batch.to(device))
            loss = nn.functional.cross_entropy(scores, truth.to(device))
            loss.backward()
            optimizer.step()
            epoch_loss += loss.item()
            correct += (scores.argmax(1).cpu() == truth).sum().item()
            total += len(truth)
        << guide 5 >>
    weights = [parameter.detach().cpu() for parameter in model.parameters()]
    return {
        "rank": dist.get_rank(),
        "own": (total, correct),
        "all": (int(stats[2]), int(stats[1])),
        "metrics": (avg_loss, accuracy),
        "weights": torch.cat([weight.flatten() for weight in weights]),
    }
"""

_GUIDE_HOLDS = """
assert [result["rank"] for result in results] == [0, 1]
assert all(result["own"][0] == 5000 for result in results)
for result in results:
    assert result["all"] == tuple(map(sum, zip(*(each["own"] for each in results))))
    assert result["metrics"] == results[0]["metrics"]
    assert result["weights"].equal(results[0]["weights"])
"""

PROGRAMS = {
    # The page of the torch plugin from top to bottom; `train` is that of its first example.
    "the torch plugin": Program(
        """\
<< plugin 0 >>
assert [result["rank"] for result in results] == [0, 1, 2, 3]
<< plugin 1 >>
assert [result["rank"] for result in results] == [0, 1]
<< plugin 2 >>
with sky.ComputePool(provider=sky.Local(), nodes=2, plugins=plugins) as pool:
    results = train() @ pool
assert [result["rank"] for result in results] == [0, 1]
<< plugin 3 >>
assert [result["rank"] for result in results] == [0, 1, 2, 3]


@sky.compute
def finetune():
    import os
    import torch.distributed as dist

    return dist.get_rank(), os.environ["HF_TOKEN"]


<< plugin 4 >>
assert results == [(0, "hf_xxx"), (1, "hf_xxx")]
""",
        prints=_EPOCHS + _RANKS + 3 * _EPOCHS,
    ),
    # The page shows lines of a file by their numbers; they are those of the guide, but for the two
    # decorators, which its text names.
    "the torch integration": Program(
        f"""\
import jupyter_sky as sky


@sky.compute
@sky.integrations.torch
def train(epochs, batch_size, lr):
{_GUIDE}

with sky.ComputePool(provider=sky.Local(), nodes=2) as pool:
    results = train(2, 64, 0.05) @ pool
{_GUIDE_HOLDS}
""",
        prints="",
    ),
    "the guide": Program(
        f"""\
import jupyter_sky as sky

assert sky.accelerators.T4().name == "T4"


<< guide 1 >>
{_GUIDE}

<< guide 0 >>
    results = train(2, 64, 0.05) @ compute
assert train.__doc__
{_GUIDE_HOLDS}
""",
        prints="",
    ),
    "a group without a word": Program(
        """\
import jupyter_sky as sky

<< concepts 0 >>
assert results == [None] * 4
""",
        prints="",
    ),
    "shards, context and output": Program(
        """\
import jupyter_sky as sky


def fit(x, y):
    return list(zip(x, y))


<< concepts 2 >>

with sky.ComputePool(provider=sky.Local(), nodes=4) as pool:
    results = train(range(100), [-number for number in range(100)]) @ pool
    assert all(x == -y for result in results for x, y in result)
    assert sorted(x for result in results for x, _ in result) == list(range(100))
    assert results[0] != sorted(results[0])

    def coordinate_others():
        print("coordinating")

    process = sum
    << concepts 3 >>
    assert distributed_task([1, 2]) @ pool == [3] * 4

    epoch, loss = 3, 0.25
    << concepts 4 >>
    train() @ pool
    << concepts 5 >>
    assert train() @ pool == [None] * 4

    @sky.compute
    @sky.stdout(only=lambda info: info.node < 2)
    def first_two():
        print("one of two")

    first_two() @ pool

    @sky.compute
    @sky.silent
    def silent():
        print("never shown")
        return "silent"

    assert silent() @ pool == ["silent"] * 4
""",
        # Lines of several ranks come in any order, those of one call before those of the next.
        prints=r"(Node [0-3] of 4\n|coordinating\n){5}Epoch 3: loss=0.2500\n(one of two\n){2}",
    ),
    # JAX is not among what the tests install. One rank does without: it has nothing to connect to.
    "jax and keras": Program(
        """\
import importlib.util
import os

import jupyter_sky as sky

<< concepts 1 >>
nodes = 2 if importlib.util.find_spec("jax") else 1


@sky.compute
def backend():
    if nodes > 1:
        import jax

        assert jax.process_count() == nodes
    return os.environ["KERAS_BACKEND"]


with sky.ComputePool(provider=sky.Local(), nodes=nodes, plugins=plugins) as pool:
    assert backend() @ pool == ["jax"] * nodes
""",
        prints="",
    ),
}
