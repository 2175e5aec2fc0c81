"""Cells that run on a cluster, as the magic runs them."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.protocol.events import Display, Output

SUMMED = "(dist.all_reduce(x := torch.ones(1)), x.item())[1] if dist.is_initialized() else 1.0"
"""How many ranks there are in the process group, as a collective finds it; for `Cells.ask`."""

PEERS = "len(__import__('jupyter_sky').instance_info().peers)"
"""How many nodes a rank knows of; for `Cells.ask`."""

USED = ("torch", "torch._dynamo", "torch.distributed.checkpoint", "torch.distributed.fsdp")
"""What cells with optimizers and sharded models import, which takes each rank two seconds.

Nodes import it before they fork their ranks. What is there by then is also not among the objects
that a rank looks through after each error.
"""


@dataclass
class Cells:
    """Runs cells on a cluster, as the magic does."""

    cluster: Cluster
    namespace: dict[str, Any] = field(default_factory=dict)
    events: list[Output | Display] = field(default_factory=list)

    def start(
        self,
        code: str,
        *,
        ranks: Sequence[int] | None = None,
        names: Sequence[str] = (),
        values: Mapping[int, Sequence[str]] | None = None,
        show: Sequence[int] = (0,),
        title: str = "",
    ) -> RunHandle:
        ranks = tuple(self.cluster.all_ranks if ranks is None else ranks)
        update = self.cluster.sync.update(names, self.namespace, ranks)
        task = Task(
            ranks, code=code, update=update, values=values or {}, show=tuple(show), title=title
        )
        run = self.cluster.run(task)
        run.begin()
        return run

    def run(self, code: str, **options: Any) -> dict[int, Any]:
        run = self.start(code, **options)
        self.events = []
        run.follow(self.events.append)
        return run.values()

    def ask(self, expression: str, **options: Any) -> list[Any]:
        """Return an expression's value on every rank."""
        ranks = options.get("ranks") or self.cluster.all_ranks
        values = {rank: ["_asked"] for rank in ranks}
        found = self.run(f"_asked = {expression}", values=values, **options)
        return [found[rank]["_asked"] for rank in sorted(found)]

    def text(self, stream: str = "stdout", rank: int | None = None) -> str:
        """Return what the last run printed."""
        return b"".join(
            event.data
            for event in self.events
            if isinstance(event, Output)
            and event.stream == stream
            and (rank is None or event.rank == rank)
        ).decode()


def trains() -> sky.Plugin:
    """Return the plugin of torch for ranks that all train."""
    return replace(sky.plugins.torch(), preload=USED)


def start(
    nodes: int = 4,
    *,
    provider: Local | None = None,
    framework: bool | sky.Plugin = True,
    stop: float = 20.0,
    **spec: Any,
) -> Cells:
    """Start a cluster whose ranks form a group; without a framework it comes up at once."""
    wanted = ClusterSpec(name=f"test-{uuid.uuid4().hex[:8]}", nodes=nodes, **spec)
    plugin = sky.plugins.torch() if framework is True else framework
    made, runtime_env = assemble(wanted, [plugin] if plugin else [])
    return Cells(
        Cluster.start(made, provider or Local(), runtime_env, timeouts=Timeouts(stop=stop))
    )
