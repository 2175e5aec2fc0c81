"""Stop: Ctrl-C reaches every rank, wherever it is, and the next cell runs."""

from __future__ import annotations

import asyncio
import gc
import itertools
import os
import re
import signal
import socket
import threading
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import jupyter_sky as sky
from jupyter_sky.api.calls.batches import Batches
from jupyter_sky.api.calls.futures import Futures
from jupyter_sky.api.compute import PendingCompute
from jupyter_sky.api.future import CallFuture
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.network.blobs.shared_memory import SharedMemory
from jupyter_sky.cluster.runs import handle, talk
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.scheduler import Scheduler
from jupyter_sky.transport.flow import Flow
from jupyter_sky.transport.protocol.events import Output
from tests import waiting
from tests.cluster.conftest import Cells, prepared
from tests.faults.parts import agent_of


@pytest.fixture(scope="module")
def cells() -> Iterator[Cells]:
    """A cluster of these tests' own: what they do to ranks stays with them."""
    yield from prepared()


def submit(cells: Cells, call: PendingCompute[None]) -> CallFuture[None]:
    """Begin a call on one of the ranks, as `call > pool` does."""
    batches = Batches(cells.cluster, (), sky.Worker(), [].append, weakref.WeakSet())
    return Futures(batches).submit(call)


def test_stop_is_heard_where_looking_at_the_rank_has_failed(cells: Cells) -> None:
    cells.run(
        "import sys\nclass Odd:\n    def __str__(self): raise ValueError('odd')\n"
        "sys.path.append(Odd())"
    )
    pids = cells.ask("os.getpid()")
    run = cells.start("if rank == 0: dist.barrier()\nelse: time.sleep(600)")
    cells.cluster.where()
    cells.cluster.interrupt_run(run.id)
    run.follow()
    assert cells.ask("(sys.path.pop(), os.getpid())[1]") == pids


@sky.compute
def meet(here: Path) -> None:
    import torch

    here.touch()
    torch.distributed.barrier()


@pytest.mark.parametrize("limit", [None, 1.0])
def test_a_call_in_a_collective_that_has_to_end_keeps_its_rank(
    cells: Cells, tmp_path: Path, limit: float | None
) -> None:
    pids = cells.ask("os.getpid()")
    future = submit(cells, meet(tmp_path / "here").with_timeout(limit))
    waiting.until((tmp_path / "here").exists)
    if limit is None:
        assert future.cancel()
    else:
        assert isinstance(future.exception(waiting.PATIENCE), TimeoutError)
    assert cells.ask("(dist.barrier(), os.getpid())[1]") == pids


@sky.compute
def begin_alone(here: Path, message: str) -> None:
    import time

    import torch

    torch.distributed.barrier(async_op=True)
    here.touch()
    if message:
        raise ValueError(message)
    time.sleep(600)


@pytest.mark.parametrize("message", ["", "the call's own"])
def test_a_collective_that_a_call_has_begun_alone_is_not_met_by_the_next_one(
    cells: Cells, tmp_path: Path, message: str
) -> None:
    future = submit(cells, begin_alone(tmp_path / "here", message))
    waiting.until((tmp_path / "here").exists)
    assert message in str(future.exception(waiting.PATIENCE)) if message else future.cancel()
    cells.run("x = torch.tensor([rank])\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [6] * 4


@sky.compute
def meet_and_return(here: Path) -> None:
    import contextlib

    import torch

    here.touch()
    with contextlib.suppress(BaseException):
        torch.distributed.barrier()


def test_a_call_that_catches_what_ends_its_collective_keeps_nobody_waiting(
    cells: Cells, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    controller = cells.cluster._scheduler.controller
    never_by_force = replace(controller.timeouts, stop=3600.0)
    monkeypatch.setattr(controller, "timeouts", never_by_force)
    pids = cells.ask("os.getpid()")
    future = submit(cells, meet_and_return(tmp_path / "here"))
    waiting.until((tmp_path / "here").exists)
    assert future.cancel()
    assert cells.ask("(dist.barrier(), os.getpid())[1]") == pids


def stop(cells, code: str) -> Interrupted:
    """Run a cell and press Stop when the head's first line arrives."""
    return stop_at_first_line(cells.start(f"print('here')\n{code}"))


def stop_at_first_line(run: RunHandle) -> Interrupted:
    return stop_at(run, b"")


def stop_at(run: RunHandle, text: bytes, shown: bytearray | None = None) -> Interrupted:
    """Press Stop when a text has arrived from the ranks that are shown; all goes to ``shown``."""
    shown = bytearray() if shown is None else shown
    pressed = False

    def press(event: Output) -> None:
        nonlocal pressed
        shown.extend(event.data)
        if text in shown and not pressed:
            pressed = True
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt) as caught:
        run.follow(press)
    assert isinstance(caught.value, Interrupted)
    return caught.value


@pytest.mark.parametrize(
    "code",
    [
        "while True: pass",
        "time.sleep(600)",
        "import subprocess; subprocess.run(['sleep', '600'])",
        "!sleep 600",
        "found = !sleep 600",
        "for _ in range(600):\n    !sleep 1",
        "dist.barrier() if rank else time.sleep(600)",
        # Python ignores what is raised there.
        "class Loader:\n    def __del__(self): time.sleep(600)\nLoader()\ntime.sleep(600)",
    ],
)
def test_stop(cells, code: str) -> None:
    cells.run("kept = rank + 1")
    said = str(stop(cells, code))
    assert said.startswith("ranks 0-3 stopped")
    assert cells.ask("kept") == [1, 2, 3, 4]
    cells.run("x = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [4.0] * 4


def test_stop_says_which_library_it_has_cut_off(cells: Cells, tmp_path: Path) -> None:
    library = tmp_path / "site-packages"
    library.mkdir()
    (library / "goes_on.py").write_text("import time\nprint('here')\ntime.sleep(600)")
    cells.run(
        "import sys\nfrom jupyter_sky.node.rank import deferral\n"
        "usual, deferral._LONGEST_IMPORT = deferral._LONGEST_IMPORT, 0.05\n"
        f"sys.path.append({str(library)!r})"
    )
    shown = bytearray()
    stop_at(cells.start("import goes_on"), b"here", shown)
    cells.run("deferral._LONGEST_IMPORT = usual; sys.path.pop()")
    assert b"The import of goes_on was interrupted: " in shown


def test_stop_is_heard_where_a_lock_is_given_back(cells) -> None:
    """As ipykernel's flush does: it waits for an event, whose lock the interrupt leaves open."""
    run, lock = cells.start("print('here')\ntime.sleep(600)"), threading.Lock()

    def press(event: Output) -> None:
        with lock:
            lock.release()
            raise KeyboardInterrupt  # comes before the lock is taken again

    with pytest.raises(Interrupted, match="ranks 0-3 stopped"):
        run.follow(press)
    assert cells.ask("rank") == [0, 1, 2, 3]


@pytest.mark.parametrize("way", ["shared memory", "link"])
def test_what_is_being_sent_for_a_stopped_run_goes_no_further(cells, monkeypatch, way: str) -> None:
    begun, value = threading.Event(), np.full(2**21, float(len(way)))  # not what a node has
    kept = weakref.ref(value)

    async def never(*args: object) -> bool:
        begun.set()
        await asyncio.Event().wait()
        return False

    async def not_written(*args: object) -> bool:
        return False

    if way == "link":
        monkeypatch.setattr(SharedMemory, "write", not_written)
        monkeypatch.setattr(Flow, "wait_for_room", never)
    else:
        monkeypatch.setattr(SharedMemory, "_fill", never)
    cells.namespace["value"] = value
    run = cells.start("pass", names=["value"])
    assert begun.wait(waiting.PATIENCE)
    run.stop()
    waiting.until(lambda: run.finished)
    monkeypatch.undo()
    [connection] = cells.cluster._scheduler.controller.connections
    waiting.until(lambda: not [*connection.uploads.shared._folder.glob(f"{os.getpid()}-*.part")])
    assert cells.ask("value.size", names=["value"]) == [2**21] * 4
    cells.namespace.clear()
    del value
    waiting.until(lambda: gc.collect() >= 0 and kept() is None)


def test_an_error_of_a_lock_is_no_stop(cells) -> None:
    def show(event: Output) -> None:
        threading.Lock().release()

    with pytest.raises(RuntimeError, match="release unlocked lock"):
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt:  # of something else, before
            cells.start("print('here')").follow(show)


def test_a_collective_that_one_rank_has_begun_and_left_is_not_one_of_the_next_cell(cells) -> None:
    begin = "if rank == 0:\n    left = dist.all_reduce(torch.full((3,), 100.0), async_op=True)\n"
    stop_at_first_line(cells.start(f"{begin}print('here')\ntime.sleep(600)"))
    cells.run("x = torch.ones(3)\ndist.all_reduce(x)")
    assert cells.ask("x.tolist()") == [[4.0] * 3] * 4


def break_group(cells: Cells, code: str = "dist.barrier() if rank else time.sleep(600)") -> None:
    """Press Stop when a rank waits in a collective: the next cell finds the group formed again."""
    run = cells.start(code)
    waiting.until(lambda: re.match(r"ranks? \S+ waits? in ", cells.cluster.where().sentence))
    cells.cluster.interrupt_run(run.id)
    run.follow()


def test_gradients_are_on_again_where_stop_ends_a_collective_without_them(cells) -> None:
    waits = "dist.barrier(async_op=True).wait() if rank else time.sleep(600)"
    break_group(cells, f"with torch.no_grad():\n    {waits}")
    assert cells.ask("torch.is_grad_enabled()") == [True] * 4


def test_a_wrapped_model_trains_on_where_the_group_was_broken(cells) -> None:
    cells.run(
        "from torch.nn.parallel import DistributedDataParallel\n"
        "from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook\n"
        "model = DistributedDataParallel(torch.nn.Linear(2, 1))\n"
        "model.register_comm_hook(None, allreduce_hook)\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 3)\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.full((1, 2), rank + 1.0)).sum().backward()\n"
        "    optimizer.step(); scheduler.step()"
    )
    # Some ranks have come to the optimizer's step, and others have not.
    with pytest.raises(ValueError):
        cells.run(
            "step()\nif rank == 0: raise ValueError\n"
            "optimizer.step(); scheduler.step(); dist.barrier()"
        )
    alone = "with torch.no_grad(): evaluated = model(torch.ones(1, 2))"
    cells.run(alone, ranks=[0])
    cells.run("tried = model(torch.ones(1, 2)).item()", ranks=[0])
    cells.run("step(); step()")
    gradients, rate = "model.module.weight.grad", "optimizer.param_groups[0]['lr']"
    seen = cells.ask(f"model.module.weight.tolist(), {rate}, scheduler.last_epoch")
    assert seen == seen[:1] * 4 and seen[0][1:] == (pytest.approx(0.01), 3)
    assert cells.ask(f"{gradients}.tolist()") == [[[2.5, 2.5]]] * 4

    cut_off = "hook = model.module.weight.register_hook(lambda _: time.sleep(600))"
    stop_at(cells.start(f"if rank == 0: {cut_off}; print('hooked')\nstep()"), b"hooked")
    cells.run("if rank == 0: hook.remove()\nstep(); step()")
    assert cells.ask(f"{gradients}.tolist()") == [[[2.5, 2.5]]] * 4


def test_a_loader_of_data_goes_on_whose_workers_stop_has_ended(cells) -> None:
    cells.run(
        "from torch.utils.data import DataLoader\n"
        "loader = DataLoader(range(8), num_workers=1, persistent_workers=True)"
    )
    stop_at(cells.start("[*loader]\nprint('read')\ntime.sleep(600)"), b"read")
    cells.run("first = [*loader]; workers = loader._iterator._workers")
    # An error, after which the workers are there, leaves them.
    with pytest.raises(ValueError):
        cells.run("raise ValueError")
    seen = cells.ask("(len(first), len([*loader]), loader._iterator._workers is workers)")
    assert seen == [(8, 8, True)] * 4
    cells.run("del loader, workers")


def test_all_that_refers_to_a_group_refers_to_the_one_in_its_place(cells) -> None:
    cells.run(
        "import gc\n"
        "class Slotted:\n    __slots__ = 'group'\n"
        "class Trainer:\n    def __init__(self): self.group = dist.group.WORLD\n"
        "def closure(group): return lambda: group\n"
        "slotted, trainer, listed = Slotted(), Trainer(), [dist.group.WORLD]\n"
        "slotted.group, enclosed = dist.group.WORLD, closure(dist.group.WORLD)\n"
        "named, paired = dist.group.WORLD, ({'name': 'data'}, (dist.group.WORLD,))\n"
        "def default(group=dist.group.WORLD): return group\n"
        "config = {'group': dist.group.WORLD}\n"
        "gc.collect()"
    )
    break_group(cells)
    in_names = ("trainer.group", "listed[0]", "enclosed()", "slotted.group", "named")
    for group in (*in_names, "paired[1][0]", "default()", "config['group']"):
        cells.run(f"x = torch.ones(1)\ndist.all_reduce(x, group={group})")
        assert cells.ask("x.item()") == [4.0] * 4


def test_groups_of_some_ranks_and_what_is_sharded_over_them_go_on(cells: Cells) -> None:
    cells.run("dropped = dist.new_group([1, 2])\ndel dropped")
    cells.run(
        "from datetime import timedelta\n"
        "from torch.distributed.device_mesh import init_device_mesh\n"
        "from torch.distributed.fsdp import fully_shard\n"
        "mesh = init_device_mesh('cpu', (2, 2), mesh_dim_names=('dp', 'tp'))\n"
        "model = fully_shard(torch.nn.Linear(8, 4), mesh=mesh)\n"
        "optimizer = torch.optim.Adam(model.parameters(), lr=0.1)\n"
        "pair = dist.new_group([1, 0], timeout=timedelta(seconds=77))\n"
        "wrapped = torch.nn.parallel.DistributedDataParallel(\n"
        "    torch.nn.Linear(2, 1), process_group=mesh['tp'].get_group())\n"
        "name = mesh['dp'].get_group().group_name\n"
        "def step():\n"
        "    optimizer.zero_grad()\n"
        "    model(torch.full((1, 8), rank + 1.0)).sum().backward()\n"
        "    optimizer.step()\n"
        "step()"
    )
    break_group(cells, "if rank == 0: time.sleep(600)\nstep()")
    cells.run("step(); step()")
    assert cells.ask("optimizer.state_dict()['state'][0]['step'].item()") == [3.0] * 4
    cells.run("wrapped(torch.full((1, 2), rank + 1.0)).sum().backward()")
    gradients = cells.ask("wrapped.module.weight.grad.tolist()")
    assert gradients == [[[1.5, 1.5]]] * 2 + [[[3.5, 3.5]]] * 2
    cells.run("x = torch.ones(1)\nif rank < 2: dist.all_reduce(x, group=pair)")
    assert cells.ask("x.item()") == [2.0, 2.0, 1.0, 1.0]
    seen = cells.ask(
        "pair._get_backend(torch.device('cpu')).options._timeout.seconds if rank < 2 else None, "
        "mesh['dp'].get_group().group_name == name, len(dist.distributed_c10d._world.pg_names), "
        "dist.new_group().group_name"
    )
    # The first group, those of the mesh, and the pair; the one that was dropped is gone.
    limits, are_named, known, newest = zip(*seen, strict=True)
    assert limits == (77, 77, None, None) and are_named == (True,) * 4
    assert known == (4, 4, 3, 3) and len({*newest}) == 1


@pytest.mark.parametrize("tried_before", [True, False])
def test_a_group_that_is_not_formed_again_keeps_nothing_from_running(
    cells: Cells, monkeypatch: pytest.MonkeyPatch, tried_before: bool
) -> None:
    """As where a node no longer reaches another one directly."""
    if not tried_before:  # but by the next cell itself, which has come at once
        monkeypatch.setattr(Scheduler, "_make_whole_in_turn", lambda self: asyncio.sleep(0))
    cells.run(
        "pair, new_group = dist.new_group([0, 1]), dist.new_group\n"
        "tried = []\n"
        "def fail(*args, **options): tried.append(args); raise RuntimeError('no route')\n"
        "if rank == 1: dist.new_group = fail"
    )
    break_group(cells)
    cells.run("x = torch.ones(1)\ndist.all_reduce(x); dist.new_group = new_group")
    assert cells.ask("(x.item(), len(tried))") == [(4.0, rank == 1) for rank in range(4)]
    with pytest.raises(ValueError, match="not initialized") as caught:
        cells.run("dist.barrier(group=pair)", ranks=[0, 1])
    assert "make it again" in "".join(caught.value.__notes__)


def test_a_rank_that_does_not_react_is_ended(new) -> None:
    cells = new(nodes=2, stop=4.0)
    cells.run(
        "import ctypes, torch, torch.distributed as dist\nrank = dist.get_rank()\n"
        "both = dist.new_group([0, 1], use_local_synchronization=True)\nname = both.group_name"
    )
    # C's `system` ignores the signal, and with the GIL held nothing else in the process can react.
    deaf = "ctypes.PyDLL(None).system(b'trap : INT; echo here; while :; do sleep 1; done')"
    said = str(stop_at_first_line(cells.start(deaf, ranks=[1], show=[1])))
    assert re.search(r"rank 1 was to stop after \S+ s; it did not react yet: a rank that has", said)
    assert "that has not within 4 s is ended, and its variables are lost" in said
    cells.run("import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [2.0] * 2
    # The group is there on the new rank too, which does not know it.
    find = "both = dist.distributed_c10d._resolve_process_group(name)"
    [name] = cells.ask("name", ranks=[0])
    cells.run(f"if dist.get_rank(): name = {name!r}; {find}\ndist.all_reduce(x, group=both)")
    assert cells.ask("x.item()") == [4.0] * 2

    # So it is where another place stops it, which does not wait in this kernel.
    deaf = (
        "while True:\n    try: print('here'); time.sleep(600)\n    except KeyboardInterrupt: pass"
    )
    run = cells.start(f"import time\n{deaf}", ranks=[1], show=[1])
    stopping = itertools.count()
    run.follow(lambda event: next(stopping) or cells.cluster.interrupt_run(run.id))
    with pytest.raises(Interrupted, match="the process of rank 1 had to be ended"):
        run.values()
    shown = cells.cluster.snapshot(run=run.id)
    assert shown["run"]["state"] == "interrupted"
    error = "it did not react to Stop within 4 s, and was ended"
    assert [rank["error"] for rank in shown["ranks"] if rank["rank"] == 1] == [error]


def test_stop_that_is_pressed_again_ends_ranks_at_once_and_says_so(
    new, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = talk.request_quietly

    async def request_far_away(*args: Any, **fields: Any) -> None:
        await request(*args, **fields)
        await asyncio.sleep(0.2)

    monkeypatch.setattr(talk, "request_quietly", request_far_away)
    monkeypatch.setattr(handle, "STOPPED_WITHIN", 60.0)  # however slow the rank is to react
    cells = new(nodes=2, framework=False, stop=60.0)
    before = cells.ask("__import__('os').getpid()")
    deaf = """
import time
while True:
    try:
        print("here")
        time.sleep(600)
    except KeyboardInterrupt:
        print("ignored")
"""

    def press(event: Output) -> None:
        raise KeyboardInterrupt

    with pytest.raises(Interrupted) as caught:
        cells.start(deaf, ranks=[1], show=[1]).follow(press)
    said = (
        r"rank 1 was to stop after \S+ s; as Stop was pressed again, it is ended at once, and its"
    )
    assert re.fullmatch(rf"{said} variables are lost\.", str(caught.value))
    # The next cell does not wait for the minute that a rank gets to react.
    after = cells.ask("__import__('os').getpid()")
    assert after[0] == before[0] and after[1] != before[1]


def test_a_connection_of_the_user_survives_a_broken_collective(cells) -> None:
    cells.run(
        "import socket\n"
        "server = socket.create_server(('127.0.0.1', 0))\n"
        "mine = socket.create_connection(server.getsockname())\n"
        "theirs, _ = server.accept()"
    )
    break_group(cells)
    cells.run("mine.sendall(b'still here')\nheard = theirs.recv(100)\nmine.close(); server.close()")
    assert cells.ask("heard") == [b"still here"] * 4


def test_stop_says_where_ranks_cannot_be_told_and_where_the_cluster_is_lost(new) -> None:
    cells = new(nodes=1, framework=False)
    agent = agent_of(cells)
    [connection] = cells.cluster._controller.connections

    def stopped(strike: Callable[[], object]) -> str:
        """Stop a run when something was broken, and return what is said of it."""

        def press(event: object) -> None:
            strike()
            raise KeyboardInterrupt

        with pytest.raises(Interrupted) as caught:
            cells.start("print('here')\nwhile True: pass").follow(press)
        return str(caught.value)

    def lose_the_link() -> None:
        agent.suspend()
        connection._link._sock.shutdown(socket.SHUT_RDWR)
        waiting.until(lambda: not connection.is_up)

    def lose_the_cluster() -> None:
        agent.kill()
        waiting.until(lambda: not cells.cluster.alive)

    # At first it is not noticed that a link is broken.
    for strike in (agent.suspend, lose_the_link):
        said = stopped(strike)
        agent.resume()
        hears = "rank 0 will hear of it when node 0 answers again."
        assert re.fullmatch(rf"rank 0 was to stop after \S+ s; {hears}", said)
    said = stopped(lose_the_cluster)
    assert re.match(r"rank 0 stopped after \S+ s; cluster .* is lost: the agent ", said)
