"""The messages of the agent reach what they are for, also if they were read while others waited."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from IPython.core.async_helpers import get_asyncio_loop

from jupyter_sky.node.rank.inbox import Inbox
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import event_loop
from jupyter_sky.transport.frames import BlockingFrames

GIVEN_UP_AFTER = 10.0  # seconds


@pytest.fixture
def sockets() -> Iterator[tuple[socket.socket, socket.socket]]:
    """Both ends of the socket of a main thread; the agent is gone after some seconds."""
    ours, theirs = socket.socketpair()
    given_up = threading.Timer(GIVEN_UP_AFTER, theirs.shutdown, [socket.SHUT_RDWR])
    given_up.start()
    with ours, theirs:
        yield ours, theirs
        assert given_up.is_alive(), "it waited until the agent was gone"
        given_up.cancel()


@pytest.fixture
def agent(sockets: tuple[socket.socket, socket.socket]) -> BlockingFrames:
    return BlockingFrames(sockets[1])


@pytest.fixture
def interrupts() -> Iterator[Interrupts]:
    before = signal.getsignal(signal.SIGINT)
    yield Interrupts()
    signal.signal(signal.SIGINT, before)


@pytest.fixture
def inbox(sockets: tuple[socket.socket, socket.socket], interrupts: Interrupts) -> Inbox:
    return Inbox(BlockingFrames(sockets[0]), interrupts)


@pytest.fixture
def leave_task(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], object]:
    """Leave a task that calls a function, as a cell does."""
    monkeypatch.setattr(event_loop, "_was_used", True)

    def leave(function: Callable[[], object]) -> object:
        async def task() -> None:
            function()

        return get_asyncio_loop().create_task(task())

    return leave


def fail() -> None:
    raise AssertionError("it waited, although the command has come")


def test_a_command_that_comes_while_a_task_displays_is_carried_out(
    agent: BlockingFrames, inbox: Inbox, leave_task: Callable[[Callable[[], object]], object]
) -> None:
    tasks = []

    def display() -> None:
        for command in ("run", "tell", "reserve"):
            agent.send({"op": command, "run": "first", "number": 7})
        agent.send({"op": "displayed", "number": 1})
        inbox.wait_displayed(1)

    tasks = [leave_task(display)]
    first = inbox.next_command(fail)
    assert first and first["op"] == "run"
    told = inbox.next_told("first")
    assert told and told["op"] == "tell"
    second = inbox.next_command(fail)
    assert second and second["op"] == "reserve"
    # Also where the task begins after a moment in which the rank had nothing to do.
    third = inbox.next_command(lambda: tasks.append(leave_task(display)))
    assert third and third["op"] == "run"


def test_what_is_told_to_a_run_that_has_not_begun_is_kept(
    agent: BlockingFrames, inbox: Inbox
) -> None:
    """It was read while the rank displayed something before, as a plugin that forms a group may."""
    for op in ("run", "tell"):
        agent.send({"op": op, "run": "next"})
    agent.send({"op": "displayed", "number": 1})
    inbox.wait_displayed(1)
    command = inbox.next_command(fail)
    assert command and command["op"] == "run"
    told: Any = inbox.next_told("next", waits=False)
    assert told and told["run"] == "next"


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_a_task_that_raises_what_would_end_a_process_ends_no_rank(
    error: type[BaseException],
    agent: BlockingFrames,
    inbox: Inbox,
    leave_task: Callable[[Callable[[], object]], Any],
) -> None:
    def end() -> None:
        raise error

    task = leave_task(end)
    command = inbox.next_command(lambda: agent.send({"op": "end"}))
    assert command and command["op"] == "end"
    with pytest.raises(error):
        task.result()


def test_stop_ends_tasks_that_keep_a_run_from_beginning(
    agent: BlockingFrames,
    inbox: Inbox,
    interrupts: Interrupts,
    leave_task: Callable[[Callable[[], object]], Any],
) -> None:
    interrupts.run_interruptible(list)  # the run that has left them

    def block() -> None:
        agent.send({"op": "end"})
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(GIVEN_UP_AFTER)

    def block_on() -> None:
        """Go on after the first of them, as what catches every error."""
        with contextlib.suppress(KeyboardInterrupt):
            block()
        assert interrupts.keeps_waiting
        interrupts.repeat(force=True)
        threading.Event().wait(GIVEN_UP_AFTER)

    def block_having_read_it() -> None:
        """Block after a display: what waits was read while that was on its way."""
        agent.send({"op": "end"})
        agent.send({"op": "displayed", "number": 1})
        inbox.wait_displayed(1)
        os.kill(os.getpid(), signal.SIGINT)
        threading.Event().wait(GIVEN_UP_AFTER)

    for blocks in (block, block_on, block_having_read_it):
        task, other = leave_task(blocks), leave_task(fail)
        other.cancel()
        command = inbox.next_command(fail)
        assert command and command["op"] == "end"
        with pytest.raises(KeyboardInterrupt):
            task.result()
        assert other.cancelled()
        with pytest.raises(KeyboardInterrupt):
            interrupts.run_interruptible(interrupts.raise_pending)
        interrupts.run_interruptible(interrupts.raise_pending)
    assert not interrupts.keeps_waiting


def test_a_stop_that_comes_after_its_run_leaves_tasks_alone(
    agent: BlockingFrames,
    inbox: Inbox,
    interrupts: Interrupts,
    leave_task: Callable[[Callable[[], object]], Any],
) -> None:
    interrupts.run_interruptible(list)

    went_on = []

    def go_on() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        agent.send({"op": "end"})
        went_on.append(True)

    leave_task(go_on)
    assert inbox.next_command(fail)
    assert went_on
    interrupts.run_interruptible(interrupts.raise_pending)
