"""The messages to a rank's main thread: commands, and messages within a run."""

from __future__ import annotations

import select
import socket
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any, cast

from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import event_loop
from jupyter_sky.node.rank.unseen_output import unseen
from jupyter_sky.transport.frames import BlockingFrames, Message
from jupyter_sky.transport.protocol.messages import whole_command
from jupyter_sky.transport.protocol.rank_messages import RankCommand, TellCommand

_MOMENT = 0.1  # seconds


class Inbox:
    """Receives the messages of the agent to the main thread.

    Parameters
    ----------
    frames
        The socket of the main thread.
    interrupts
        Waiting for a message may be interrupted, but never reading one.
    """

    def __init__(self, frames: BlockingFrames, interrupts: Interrupts) -> None:
        self._frames = frames
        self._interrupts = interrupts
        # What was read while waiting for something else.
        self._told: deque[TellCommand] = deque()
        self._commands: deque[Message] = deque()
        self._poll = select.poll()
        self._poll.register(frames.sock, select.POLLIN)

    def next_command(self, idle: Callable[[], None]) -> RankCommand | None:
        """Return the next command; ``None`` if the agent is gone.

        ``idle`` is called if none arrives for a moment.
        """
        if not self._commands:  # it may be for the run that one of them begins
            self._told.clear()  # what comes after the end of a run
        if not self._has_come(_MOMENT):
            idle()
            self._wait()
        while message := self._next():
            if message["op"] == "run":
                return cast(RankCommand, whole_command(message))
            if message["op"] not in ("tell", "displayed"):
                return cast(RankCommand, message)
            self._wait()
        return None

    def _next(self) -> Message | None:
        return self._commands.popleft() if self._commands else self._frames.receive()

    def _wait(self) -> None:
        while not self._has_come(None):
            pass

    def _has_come(self, within: float | None) -> bool:
        """Wait some seconds for a message; print errors of the user's code that runs meanwhile.

        That is what handles a signal, and tasks that cells have left.
        """
        try:
            if self._has_read:
                return True
            with unseen.tasks():
                if event_loop.has_tasks():
                    self._interrupts.run_between_runs(self._waits, self._run_tasks, within)
                return self._has_read or bool(self._poll.poll(within and int(within * 1000)))
        except KeyboardInterrupt:  # a Stop, and not in a task: that run is interrupted later
            pass
        except Exception:
            with unseen.tasks():
                traceback.print_exc()
        return False

    def _run_tasks(self, within: float | None) -> None:
        event_loop.run_tasks_until_readable(self._frames.sock, within)
        if self._interrupts.was_raised:  # in one of them, which blocked the loop
            event_loop.cancel_tasks()

    def _waits(self) -> bool:
        """Return whether a message waits; a task may have read it, which waited for its display."""
        return self._has_read or _is_readable(self._frames.sock)

    @property
    def _has_read(self) -> bool:
        """Whether a message was read that `next_command` has not looked at yet."""
        return bool(self._commands) or self._frames.has_message

    def next_told(self, run: str, waits: bool = True) -> TellCommand | None:
        """Return the next message in the middle of a run; ``None`` if the agent is gone.

        Without waiting, ``None`` also if none has arrived.
        """
        sock = self._frames.sock
        while not (told := self._told_so_far(run)):
            if not self._frames.has_message:
                if waits:
                    self._interrupts.run_step(_wait, sock)
                elif not _is_readable(sock):
                    return None
            message = self._interrupts.run_protected(self._frames.receive)
            if message is None:
                return None
            self._sort(message)
        return told

    def _told_so_far(self, run: str) -> TellCommand | None:
        """Return a message in the middle of a run that was read already."""
        while self._told:
            if (told := self._told.popleft())["run"] == run:
                return told
        return None

    def wait_displayed(self, number: int) -> None:
        """Wait until the agent has read what was printed before a display."""
        shown: int | None = -1
        while shown is not None and shown < number:
            # An interrupt only ends the waiting: a message that was read may be for others, such as
            # the next call if the time of this one is over.
            if not self._frames.has_message:
                _wait(self._frames.sock)
            shown = self._interrupts.run_protected(self._take_displayed)
        if self._has_read:
            event_loop.return_from_tasks()

    def _take_displayed(self) -> int | None:
        """Read a message; return the number of its display, -1 if none, or ``None`` at the end."""
        if (message := self._frames.receive()) is None:
            return None
        if message["op"] == "displayed":
            return int(message["number"])
        self._sort(message)
        return -1

    def _sort(self, message: Message) -> None:
        if message["op"] == "tell":
            told: Any = message
            self._told.append(told)
        elif message["op"] != "displayed":
            self._commands.append(message)


def _wait(sock: socket.socket) -> None:
    select.select([sock], [], [])


def _is_readable(sock: socket.socket) -> bool:
    return bool(select.select([sock], [], [], 0)[0])
