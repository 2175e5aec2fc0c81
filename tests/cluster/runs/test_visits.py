"""Those who only look at a cluster: it is to them as it is, and stays as if they were not there."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import probe, registry
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.events import Output


@pytest.fixture
def short() -> Iterator[Cluster]:
    """A cluster that ends half a second after its notebook has left."""
    spec, runtime_env = assemble(ClusterSpec(name=f"short-{uuid.uuid4().hex[:6]}", nodes=2), [])
    cluster = Cluster.start(spec, Local(grace=0.5), runtime_env)
    yield cluster
    cluster.close()
    if row := registry.find(cluster.name):
        Cluster.abandon(row, Local())


def visited(cluster: Cluster) -> Cluster:
    row = registry.find(cluster.name)
    assert row is not None
    visitor = Cluster.visit(row, Local())
    assert visitor is not None
    return visitor


def test_a_visitor_keeps_nothing_up(short: Cluster) -> None:
    row = registry.find(short.name)
    assert row is not None
    visitor = visited(short)
    short.close()
    while visitor.alive:
        time.sleep(0.01)
    visitor.close()
    # The agents have ended, although a visitor was connected.
    while probe.look([row], {"local": Local()})[0].phase != "gone":
        time.sleep(0.01)


def test_a_visitor_follows_what_the_notebook_runs(short: Cluster) -> None:
    run = short.run(Task((0, 1), code="print('one'); input_from = open", show=(0,)))
    run.begin()
    run.follow()
    waits = short.run(
        Task((0, 1), code="print('two', flush=True)\nimport time\ntime.sleep(600)", show=(0,))
    )
    waits.begin()
    assert waits.left.wait(30)
    visitor = visited(short)
    while not (taken := visitor.take_up()):  # it may be on its way to the ranks
        visitor.close()
        visitor = visited(short)
    seen = bytearray()

    def show(event: object) -> None:
        assert isinstance(event, Output)
        seen.extend(event.data)
        visitor.interrupt()

    taken.follow(show)
    with pytest.raises(KeyboardInterrupt):
        taken.check()
    assert bytes(seen) == b"two\n"
    assert visitor.calm(30)
    visitor.close()
    waits.follow()
    with pytest.raises(KeyboardInterrupt):
        waits.check()
    again = short.run(Task((0, 1), code="pass"))
    again.follow()
    again.values()
