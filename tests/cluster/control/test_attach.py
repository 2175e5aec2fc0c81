"""What another kernel finds where the one before it died at a bad moment."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Timer
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control import process_group, scaling
from jupyter_sky.cluster.control.controller import Controller
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network.connection import Connection
from jupyter_sky.cluster.network.requests.seen import Seen
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.state import RankPhase
from jupyter_sky.providers.local import Local
from jupyter_sky.transport import event_loop
from tests.cluster.cells import PEERS, SUMMED
from tests.cluster.conftest import start, taken_up
from tests.conftest import kill_processes_of
from tests.forks import forks_with
from tests.waiting import until

IN_A_GROUP = "import torch, torch.distributed as dist"


@pytest.mark.parametrize("framework", [False, True])
def test_ranks_that_left_before_the_others_formed_a_group(
    new, attached, monkeypatch, framework: bool
) -> None:
    cells = new(nodes=3, framework=framework)
    monkeypatch.setattr(scaling, "_form_again", as_if_killed)
    cells.cluster.scale(2)
    cells.cluster.close()
    cells = attached(cells.cluster.name, framework=framework)
    assert cells.ask(PEERS) == [2, 2]
    if framework:
        cells.run(IN_A_GROUP)
        assert cells.ask(SUMMED) == [2.0, 2.0]


def test_a_kernel_that_cannot_attach_keeps_nobody_believing_that_it_has(
    new, attached, monkeypatch
) -> None:
    cells = new(framework=False)
    controllers: list[Controller] = []

    async def fail(controller: Controller, *_: object) -> None:
        controllers.append(controller)
        raise sky.SkyError("the registry cannot be used.")

    with monkeypatch.context() as patch:
        patch.setattr(scaling, "finish_interrupted", fail)
        with pytest.raises(sky.SkyError, match="the registry cannot be used"):
            attached(cells.cluster.name, framework=False)
    assert all(each.is_over for each in controllers[0].connections)


async def as_if_killed(controller: object) -> None:
    """Do nothing more, as a kernel that is killed."""


def test_a_cluster_that_is_made_smaller_meanwhile_is_not_ended(new) -> None:
    cells = new(nodes=2, provider=Local(machines=2), framework=False)
    row = registry.find(cells.cluster.name)  # which another kernel has read
    cells.cluster.scale(1)
    with pytest.raises(sky.SkyError, match="was changed by another notebook: try again"):
        Cluster.attach(row, Local(), RuntimeEnv(life=None))
    assert cells.ask("1") == [1]
    cells.cluster.down()
    # Nor is it ended once more if another has ended it, and started one of its name.
    assert Cluster.attach(row, Local(), RuntimeEnv(life=None)) is None


def test_a_group_that_a_run_has_broken(new, attached) -> None:
    cells = new(nodes=2)
    cells.run(IN_A_GROUP)
    with pytest.raises(ZeroDivisionError):  # which ends the other one's collective
        cells.run("if dist.get_rank() == 0: dist.recv(torch.ones(1), 1)\nelse: 1 / 0")
    cells.cluster.close()
    cells = attached(cells.cluster.name)
    assert cells.ask(SUMMED) == [2.0, 2.0]


def test_ranks_that_have_ended_or_are_about_to(new, attached, monkeypatch) -> None:
    cells = new(nodes=2)
    cells.run(IN_A_GROUP)
    # As by a kernel that is killed: what it has heard of is told to the next one again.
    monkeypatch.setattr(Seen, "tell", lambda self: None)
    with pytest.raises(RankLost):
        cells.run("if dist.get_rank(): __import__('os').kill(__import__('os').getpid(), 9)")
    until(lambda: cells.cluster.state.settled)
    cells.cluster.close()
    follow_late(monkeypatch)
    cells = attached(cells.cluster.name)
    cells.run(IN_A_GROUP)
    assert cells.ask(SUMMED) == [2.0, 2.0]
    monkeypatch.undo()
    monkeypatch.setattr(Seen, "tell", lambda self: None)
    event_loop.wait(process_group.end_ranks(cells.cluster._controller, [0, 1], patience=10.0))
    cells.cluster.close()
    cells = attached(cells.cluster.name)
    cells.run(IN_A_GROUP)
    assert cells.ask(SUMMED) == [2.0, 2.0]


def follow_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have repeated events come when the first run forms the group, as over a slow link."""
    follow, request = Connection.follow, Connection.request
    asked: dict[Connection, tuple[int, int]] = {}

    async def request_after(self: Connection, op: str, **fields: Any) -> Any:
        if op == "form" and self in asked:
            follow(self, *asked.pop(self))
        return await request(self, op, **fields)

    monkeypatch.setattr(Connection, "request", request_after)
    monkeypatch.setattr(
        Connection, "follow", lambda self, since, known: asked.update({self: (since, known)})
    )


def test_ranks_that_wait_for_others_that_were_not_told_of_the_group(
    attached, home: Path, tmp_path: Path
) -> None:
    name = tmp_path / "name"

    def die_while_a_group_is_formed(how: Callable[[Path], None]) -> None:
        arguments = (how, name, dict(os.environ))
        kernel = forks_with(__name__).Process(target=be_killed_in_between, args=arguments)
        kernel.start()
        kernel.join()
        assert kernel.exitcode == -signal.SIGKILL

    try:
        die_while_a_group_is_formed(start_and_scale)
        cells = attached(name.read_text())
        assert cells.ask(PEERS) == [1]
        cells.cluster.scale(2, Local(machines=2))
        # The turn of a notebook that has gone is that of the next one.
        die_while_a_group_is_formed(restart)
        cells.run(IN_A_GROUP)
        assert cells.ask(SUMMED) == [2.0, 2.0]
    finally:
        kill_processes_of(home)


def test_a_rank_that_no_longer_starts(new, attached) -> None:
    cells = new(nodes=2, framework=False)
    until(lambda: cells.cluster.state.settled)

    def is_given_up() -> bool:
        rank = cells.cluster.state.ranks[1]
        if rank.pid:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGKILL)
        return rank.phase is RankPhase.DEAD

    until(is_given_up)
    with pytest.raises(sky.ClusterLost, match="rank 1 no longer starts, it was killed by"):
        cells.run("pass")
    other = attached(cells.cluster.name, framework=False)
    with pytest.raises(sky.ClusterLost, match="rank 1 no longer starts, it was killed by"):
        other.run("pass")


def test_a_group_that_another_notebook_is_forming_is_left_alone(
    new_with, attached, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forming, go = tmp_path / "forming", tmp_path / "go"

    def slow(info):
        if info.generation > 1:
            forming.touch()
            while not go.exists():
                time.sleep(0.01)
        yield

    async def abandon(controller: Any, patience: float) -> None:
        asyncio.get_running_loop().call_later(0.3, go.touch)
        await process_group_abandon(controller, patience)

    process_group_abandon = process_group.abandon
    monkeypatch.setattr(process_group, "abandon", abandon)
    monkeypatch.setattr(process_group, "PATIENCE", 0.0)
    cells = new_with([sky.Plugin("slow", around_app=slow)], nodes=2)
    with ThreadPoolExecutor() as pool:
        restart = pool.submit(cells.cluster.restart)
        until(forming.exists)
        other = attached(cells.cluster.name, framework=False)
        restart.result()
    assert other.ask(PEERS) == [2, 2]


def test_a_rank_that_is_about_to_end_for_a_new_one(new_with, attached, tmp_path: Path) -> None:
    go = tmp_path / "go"

    def slow(info):
        yield
        while info.rank == 0 and not go.exists():
            time.sleep(0.01)

    cells = new_with([sky.Plugin("slow", around_process=slow)], nodes=2)
    event_loop.wait(process_group.end_ranks(cells.cluster._controller, [0], patience=60.0))
    cells.cluster.close()
    cells = attached(cells.cluster.name, framework=False)
    Timer(0.3, go.touch).start()
    assert cells.ask(PEERS) == [2, 2]


def be_killed_in_between(
    how: Callable[[Path], None], name: Path, variables: Mapping[str, str]
) -> None:
    """Be a kernel that is killed when one of two nodes has been told to form a group."""
    os.environ.clear()
    os.environ.update(variables)
    request, told = Connection.request, asyncio.Event()

    async def tell_one(self: Connection, op: str, **fields: Any) -> Any:
        if op == "form" and 1 in self.ranks:
            await told.wait()
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await request(self, op, **fields)
        if op == "form":
            told.set()
        return answer

    Connection.request = tell_one  # type: ignore[method-assign]
    how(name)


def start_and_scale(name: Path) -> None:
    cells = start(1, provider=Local(machines=2))
    name.write_text(cells.cluster.name)
    cells.cluster.scale(2)


def restart(name: Path) -> None:
    taken_up(name.read_text()).cluster.restart()
