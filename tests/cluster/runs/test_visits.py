"""Those who only look at a cluster: it is to them as it is, and stays as if they were not there."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import controller
from jupyter_sky.cluster.inventory import probe, registry
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.runs import other_notebooks
from jupyter_sky.cluster.runs.sending import outcome
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.events import Output
from tests.conftest import processes_of
from tests.waiting import until


@contextmanager
def started(grace: float) -> Iterator[Cluster]:
    """Start a cluster that ends so many seconds after its last notebook has left."""
    spec, runtime_env = assemble(ClusterSpec(name=f"short-{uuid.uuid4().hex[:6]}", nodes=2), [])
    cluster = Cluster.start(spec, Local(grace=grace), runtime_env)
    yield cluster
    cluster.down()
    while processes_of(Path(cluster.id)):  # an agent that was killed, or ended itself
        time.sleep(0.01)


@pytest.fixture
def short() -> Iterator[Cluster]:
    """A cluster that ends half a second after its notebook has left."""
    with started(0.5) as cluster:
        yield cluster


@pytest.fixture
def lasting() -> Iterator[Cluster]:
    """A cluster that stays up when its notebook has left."""
    with started(600.0) as cluster:
        yield cluster


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
    while probe.probe([row], {"local": Local()})[0].phase != "gone":
        time.sleep(0.01)


def test_a_visitor_follows_what_the_notebook_runs(short: Cluster) -> None:
    run = short.run(Task((0, 1), code="print('one'); input_from = open", show=(0,)))
    run.begin()
    run.follow()
    waits = short.run(
        Task((0, 1), code="print('two', flush=True)\nimport time\ntime.sleep(600)", show=(0,))
    )
    waits.begin()
    visitor = visited(short)
    while not (taken := visitor.pop_unseen_run()):  # it may be on its way to the ranks
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
    assert visitor.wait_until_idle(30)
    visitor.close()
    waits.follow()
    with pytest.raises(KeyboardInterrupt):
        waits.check()
    again = short.run(Task((0, 1), code="pass"))
    again.follow()
    again.values()


def test_a_run_that_is_over_is_not_said_to_go_on_where_a_node_tells_of_its_end_late(
    lasting: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = lasting.run(Task((0, 1), code="import time\ntime.sleep(600)", title="first"))
    first.begin()
    until(lambda: all(rank.run == first.id for rank in lasting.state.ranks))
    row = registry.find(lasting.name)
    assert row is not None
    visitor = visited(lasting)
    lasting.close()  # with its run, whose end it does not see
    visitor.interrupt()
    assert visitor.wait_until_idle(30)
    follow = Connection.follow

    def follow_late(connection: Connection, *where: int, **known: int) -> None:
        late = 0.2 if 1 in connection.ranks else 0.0
        asyncio.get_running_loop().call_later(late, partial(follow, connection, *where, **known))

    monkeypatch.setattr(Connection, "follow", follow_late)
    other = Cluster.attach(row, Local(), lasting.runtime_env)
    assert other is not None
    notices: list[str] = []
    second = other.run(Task((0, 1), code="pass", title="second"))
    second.follow(notice=notices.append)
    second.check()
    assert notices == []
    other.close()
    visitor.close()


def test_a_run_of_another_kernel_may_take_longer_than_ranks_take_to_start(
    short: Cluster, tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nx = 1"
    mine = short.run(Task((0, 1), code=code, values={0: ["x"]}))
    mine.begin()
    row = registry.find(short.name)
    assert row is not None
    theirs = None
    while theirs is None:  # it may be on its way to the ranks
        other = Cluster.attach(row, Local(), short.runtime_env, Timeouts(start=0.2, stop=0.2))
        assert other is not None
        if (theirs := other.pop_unseen_run()) is None:
            other.close()
    threading.Timer(1.0, go.touch).start()  # several times what they have to start
    theirs.follow()
    assert theirs.values() == {0: {"x": 1}}
    other.close()
    mine.follow()
    assert mine.values() == {0: {"x": 1}}


def busy_with(cluster: Cluster, run: str) -> bool:
    return all(rank.run == run for rank in cluster.state.ranks)


def test_a_run_that_is_taken_up_has_its_own_age(short: Cluster) -> None:
    mine = short.run(Task((0, 1), code="import time\ntime.sleep(600)"))
    mine.begin()
    until(lambda: busy_with(short, mine.id))
    began = time.monotonic()
    until(lambda: time.monotonic() > began + 0.5)  # longer than who attaches takes to look
    row = registry.find(short.name)
    assert row is not None
    other = Cluster.attach(row, Local(), short.runtime_env)
    assert other is not None
    try:
        run = other.snapshot()["run"]
        assert run is not None
        assert run["seconds"] > 0.5
    finally:
        other.interrupt()
        other.close()
    mine.follow()


def test_a_run_that_waits_for_a_kernel_that_does_not_come_back_gives_way(
    short: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(other_notebooks, "LOOK_EVERY", 0.05)
    for_calls = short.run(Task((0, 1), serves={"concurrency": 1, "executor": "thread"}))
    for_calls.begin()
    until(partial(busy_with, short, for_calls.id))
    row = registry.find(short.name)
    assert row is not None
    other = Cluster.attach(row, Local(grace=0.5), short.runtime_env)
    assert other is not None
    waits, told = other.run(Task((0, 1), code="pass")), queue.SimpleQueue[object]()
    try:
        waits.listen(told.put, partial(told.put, "over"))
        while "this one begins when that is over" not in str(told.get(timeout=30)):
            pass
        with pytest.raises(queue.Empty):  # as long as its kernel is there
            told.get(timeout=1.0)
        short.close()
        while "waits for a notebook that is not connected: it is" not in str(told.get(timeout=30)):
            pass
        while told.get(timeout=30) != "over":
            pass
        waits.check()
    finally:
        other.close()


@pytest.fixture
def kernels() -> Iterator[list[Cluster]]:
    """A cluster of two agents, as three kernels have it."""
    spec, runtime_env = assemble(ClusterSpec(name=f"shared-{uuid.uuid4().hex[:6]}", nodes=2), [])
    kernels = [Cluster.start(spec, Local(machines=2), runtime_env)]
    row = registry.find(spec.name)
    assert row is not None
    while len(kernels) < 3:
        attached = Cluster.attach(row, Local(), runtime_env)
        assert attached is not None
        kernels.append(attached)
    yield kernels
    for kernel in kernels[1:]:
        kernel.close()
    kernels[0].down()


def test_a_run_waits_until_that_of_another_kernel_is_over(kernels: list[Cluster]) -> None:
    for mine, theirs in (kernels[:2], kernels[1::-1]):
        first = mine.run(Task((0, 1), code="import time\ntime.sleep(600)"))
        first.begin()
        until(partial(busy_with, theirs, first.id))
        notices: queue.SimpleQueue[str] = queue.SimpleQueue()
        waits, unwanted = (theirs.run(Task((0,), code="pass")) for _ in range(2))
        following = threading.Thread(
            target=partial(waits.follow, lambda event: None, notice=notices.put)
        )
        following.start()
        behind = kernels[2].run(Task((1,), code="pass"))
        told: queue.SimpleQueue[object] = queue.SimpleQueue()
        behind.listen(told.put, partial(told.put, "over"))
        while "this one begins when that is over" not in (said := notices.get(timeout=30)):
            pass
        # The kernel waits in this cell, and `%sky attach` follows only what it found when it came.
        assert f"in a terminal, `jupyter sky attach {mine.name}` shows that" in said
        while "this one begins when that is over" not in str(told.get(timeout=30)):
            pass
        assert not (waits.finished or behind.finished)
        unwanted.begin()
        unwanted.stop()
        unwanted.follow()
        with pytest.raises(KeyboardInterrupt, match="stopped before it began"):
            unwanted.check()
        theirs.interrupt()
        first.follow()
        with pytest.raises(KeyboardInterrupt):
            first.check()
        following.join(30)
        waits.check()
        while told.get(timeout=30) != "over":
            pass
        behind.check()
        assert notices.get(timeout=30).startswith("waited ")
        assert theirs.wait_until_idle(30)


def slow_down(monkeypatch: pytest.MonkeyPatch, kernel: Cluster, node: int) -> None:
    """Let requests of a kernel reach a node later than those of others do."""
    connection = kernel._scheduler.controller.connections[node]
    post, request = connection.post, connection.request

    def post_later(*request: Any) -> None:
        asyncio.get_running_loop().call_later(0.1, post, *request)

    async def request_later(op: str, **fields: Any) -> Message:
        await asyncio.sleep(0.1)
        return await request(op, **fields)

    monkeypatch.setattr(connection, "post", post_later)
    monkeypatch.setattr(connection, "request", request_later)


def hear_late(monkeypatch: pytest.MonkeyPatch, kernel: Cluster, node: int) -> None:
    """Let a kernel hear later than others that a node's ranks are in a group, and what follows."""
    link = kernel._scheduler.controller.connections[node]._link
    assert link is not None
    take, due = link._on_message, 0.0

    def take_later(message: Message, payload: memoryview) -> None:
        nonlocal due
        loop = asyncio.get_running_loop()
        late = 0.3 if message.get("event") == "formed" else 0.0
        due = max(loop.time() + late, due + 1e-6)  # in their order
        loop.call_at(due, take, message, memoryview(bytes(payload)))

    monkeypatch.setattr(link, "_on_message", take_later)


def ports_after_loss(kernels: list[Cluster], go: Path) -> set[int]:
    """Lose a rank while all kernels wait; return the head's port in the groups that they ran in.

    One of them has formed the group, and the others have not again, if that is one port.
    """
    here = "import jupyter_sky as sky, os\nhere = sky.instance_info()\n"
    code = f"{here}while here.rank and not os.path.exists({str(go)!r}): pass"
    kill = kernels[2].run(Task((0, 1), code=f"{code}\nif here.rank: os.kill(os.getpid(), 9)"))
    kill.begin()
    until(lambda: all(kernel.state.ranks[1].run == kill.id for kernel in kernels))
    port = Task((0, 1), code=f"{here}port = here.head_port", values={0: ["port"], 1: ["port"]})
    waiting = [kernel.run(port) for kernel in kernels]
    for run in waiting:
        run.begin()
    go.touch()
    kill.follow()
    ports = set()
    for run in waiting:
        run.follow()
        ports.update(port for values in run.values().values() for port in values.values())
    return ports


def test_kernels_that_begin_runs_at_the_same_moment_take_turns_also_to_form_a_group(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def ask(kernel: Cluster, title: str) -> list[list[str]]:
        code = f"seen = globals().get('seen', []) + [{title!r}]"
        run = kernel.run(Task((0, 1), code=code, values={0: ["seen"], 1: ["seen"]}))
        run.follow()
        return [value["seen"] for value in run.values().values()]

    first = [ask(kernel, f"first of {at}") for at, kernel in enumerate(kernels)]
    slow_down(monkeypatch, kernels[0], 1)
    slow_down(monkeypatch, kernels[1], 0)
    with ThreadPoolExecutor() as pool:
        three = range(3)
        many = [pool.submit(ask, each, f"{at} of {id(each)}") for at in three for each in kernels]
        for run in many:
            run.result(60)
    on_head, on_other = ask(kernels[0], "last")
    assert on_head == on_other  # each run was the next one on both ranks
    assert len(on_head) == len(set(on_head)) == len(first) + len(many) + 1
    # They all find at the same moment that a rank is lost.
    assert len(ports_after_loss(kernels, tmp_path / "go")) == 1
    # So do they where one of them hears late of what a node tells of its ranks.
    monkeypatch.setattr(controller, "_SETTLED_WITHIN", 0.05)
    hear_late(monkeypatch, kernels[0], 1)
    assert len(ports_after_loss(kernels, tmp_path / "go again")) == 1
    assert not any(kernel.outdated for kernel in kernels)
    # They restart ranks at the same moment.
    with ThreadPoolExecutor() as pool:
        for restarting in [pool.submit(kernel.restart) for kernel in kernels[:2]]:
            restarting.result(60)
    assert ask(kernels[2], "restarted") == [["restarted"]] * 2


def test_a_kernel_knows_of_another_that_has_attached_before_that_runs_anything(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch
) -> None:
    slow_down(monkeypatch, kernels[0], 0)
    slow_down(monkeypatch, kernels[1], 1)
    code = "import time\ntime.sleep(0.5)"  # longer than a request is on its way
    runs = [kernel.run(Task((0, 1), code=code)) for kernel in kernels[:2]]
    for run in runs:
        run.begin()
    for run in runs:
        run.follow()
        run.check()


@pytest.mark.parametrize(
    ("code", "error"),
    [("import time\ntime.sleep(600)", KeyboardInterrupt), ("1/0", ArithmeticError)],
)
def test_a_run_that_waits_for_its_turn_on_one_node_ends_if_it_is_stopped_or_fails_on_another(
    kernels: list[Cluster], monkeypatch: pytest.MonkeyPatch, code: str, error: type[BaseException]
) -> None:
    # As with a framework, whose ranks end together.
    monkeypatch.setattr(outcome, "fail_together", lambda *_: True)
    rank = "__import__('jupyter_sky').instance_info().rank"
    goes_on = kernels[1].run(Task((0, 1), code=f"import time\ntime.sleep(600 * {rank})"))
    mine = kernels[0].run(Task((0, 1), code=code))
    connection = kernels[0]._scheduler.controller.connections[0]
    post = connection.post

    def post_later(*request: Any) -> None:
        """Let the other run be first, and be over on this node."""
        if 0 in goes_on.done:
            post(*request)
        else:
            asyncio.get_running_loop().call_later(0.01, post_later, *request)

    monkeypatch.setattr(connection, "post", post_later)
    mine.begin()
    until(lambda: mine.sent)
    goes_on.begin()
    if error is KeyboardInterrupt:
        until(lambda: kernels[1].state.ranks[0].run == mine.id)
        mine.stop()
    mine.follow()
    with pytest.raises(error):
        mine.check()
    assert not goes_on.finished
    goes_on.stop()
    goes_on.follow()


def test_ranks_are_renewed_when_the_runs_that_went_in_between_are_over(
    kernels: list[Cluster], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mine, theirs = kernels[:2]
    controller = mine._scheduler.controller
    monkeypatch.setattr(controller, "timeouts", Timeouts(start=0.2, stop=0.2))
    failed = mine.run(Task((0, 1), code="1/0"))
    failed.follow()
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    between = theirs.run(Task((0, 1), code=code))
    between.begin()
    until(partial(busy_with, mine, between.id))
    threading.Timer(1.0, go.touch).start()  # several times what they have to stop and start
    before = [rank.pid for rank in mine.state.ranks]
    waits = kernels[2].run(Task((0, 1), code="import time\ntime.sleep(0.5)"))
    waits.begin()
    with ThreadPoolExecutor() as pool:
        renewing = pool.submit(failed.renew_ranks)
        for run in (between, waits):
            run.follow()
            run.check()
        monkeypatch.undo()
        renewing.result(60)
    assert set(before).isdisjoint(rank.pid for rank in mine.state.ranks)
