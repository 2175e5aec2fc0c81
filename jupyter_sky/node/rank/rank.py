"""A rank: one process of the group. It does what its agent says, one thing at a time.

The main thread runs the person's code. A second thread listens on a socket of its own, for what
has to reach the rank while the main thread is inside of a collective.
"""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import os
import select
import socket
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from IPython.core.async_helpers import get_asyncio_loop

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank import collective_abort, env_vars, preemption_hooks
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.namespace import Namespace, own_frames
from jupyter_sky.node.rank.shell import RankShell
from jupyter_sky.serialization import blobs, cell_sources
from jupyter_sky.transport.events import Display, Event, Formed, RankDone
from jupyter_sky.transport.frames import BlockingFrames, Message

_FLUSH_EVERY = 0.1


class Rank:
    """The life of a rank.

    Parameters
    ----------
    rank
        Its number in the group.
    shell
        Its IPython shell, inherited from the fork server.
    commands
        Socket of the main thread.
    side
        Socket of the side thread.
    folder
        Where the node's blobs are.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        commands: socket.socket,
        side: socket.socket,
        folder: Path,
    ) -> None:
        self.rank = rank
        self._shell = shell
        self._frames = BlockingFrames(commands)
        self._side = BlockingFrames(side)
        self._sending = threading.Lock()
        self._folder = folder
        self._namespace = Namespace(shell.user_ns, folder)
        self._run: str | None = None
        self._forming: int | None = None
        self._pid = os.getpid()
        self._ending = threading.Lock()
        self._interrupts = Interrupts()
        self._broken = False
        self._displays = 0
        self._life: Any = None
        self._head: socket.socket | None = None
        shell.send = self._display
        shell.put_off_interrupts = self._interrupts.put_off

    def serve(self) -> None:
        """Do what the agent says until it is gone or says that this is the end."""
        threading.Thread(target=self._listen, name="sky-side", daemon=True).start()
        self._interrupts.hold(self._obey)

    def _obey(self) -> None:
        while message := self._frames.receive():
            match message["op"]:
                case "run":
                    self._do_run(message)
                case "reserve":
                    self._reserve(message)
                case "form":
                    self._form(message)
                case "end":
                    break
        self._end()

    # What the agent says on the side

    def _listen(self) -> None:
        while True:
            ready, _, _ = select.select([self._side.sock], [], [], _FLUSH_EVERY)
            if not ready:
                # A line without an end is seen too.
                with contextlib.suppress(Exception):
                    sys.stdout.flush()
                continue
            message = self._side.receive()
            if message is None:
                return
            match message["op"]:
                case "break":
                    self._break(message)
                case "leaving":
                    preemption_hooks.say(self.rank, message, self._interrupts)

    def _break(self, message: Message) -> None:
        with self._ending:
            # A run that is over has nothing to be released from, and one that has heard of the
            # interrupt may be about to save something.
            busy = self._run if self._forming is None else self._forming
            if busy != message["run"] or (self._interrupts.heard and not message["force"]):
                return
            store = message["store"] and tuple(message["store"])
            broken = collective_abort.break_group(message["siblings"], message["addresses"], store)
            self._broken = self._broken or broken
            # Once more, for a run that had not begun when the first interrupt came.
            self._interrupts.repeat(message["force"])

    # The process group

    def _reserve(self, message: Message) -> None:
        # The head listens itself, on the one address that the group uses, before anyone is told
        # the port: nobody else can take it in between.
        if self._head is not None:
            self._head.close()
        family = socket.AF_INET6 if ":" in message["addr"] else socket.AF_INET
        self._head = socket.create_server((message["addr"], 0), family=family, backlog=1024)
        self._send_message({"reserved": self._head.getsockname()[1], "id": message["id"]})

    def _form(self, message: Message) -> None:
        error = None
        self._forming = generation = message["topology"]["generation"]
        try:
            # The former group is left as a whole, whatever comes: half of it would be in the way.
            self._leave()
            self._interrupts.allow(self._enter, message)
        except BaseException as problem:
            self._shell.format(problem, skip=2)
            error = self._shell.describe(problem)
        with self._ending:
            self._forming = None
        self._send(Formed(self.rank, generation, error))

    def _enter(self, message: Message) -> None:
        os.environ.update(env_vars.variables(message["topology"], self.rank))
        if self._head is not None:
            # The plugin that forms the group takes the descriptor over.
            os.environ["JUPYTER_SKY_HEAD_FD"] = str(self._head.detach())
            self._head = None
        else:
            os.environ.pop("JUPYTER_SKY_HEAD_FD", None)
        self._receive_names(message["names"])
        if self._life is None:
            life = blobs.unpack(message["life"], self._folder)
            life.enter_process()
            self._life = life
        self._life.enter_app()
        self._broken = False

    def _leave(self) -> None:
        if self._life is not None:
            self._life.exit_app()

    def _end(self) -> None:
        # Nothing that goes wrong in a plugin's last words keeps the rank from ending.
        with contextlib.suppress(Exception):
            self._leave()
        if self._life is not None:
            with contextlib.suppress(Exception):
                self._life.exit_process()

    # A run

    def _do_run(self, message: Message) -> None:
        self._run = message["run"]
        self._shell.begin()
        error: BaseException | None = None
        values = None
        try:
            values = self._interrupts.allow(self._perform, message)
        except BaseException as problem:
            error = problem
        if os.getpid() != self._pid:
            # A child that the person's code has forked, and that came out of the cell.
            self._flush()
            os._exit(0 if error is None else 1)
        self._flush()
        with self._ending:
            self._run = None
        self._report(message["run"], error, values)

    def _report(self, run: str, error: BaseException | None, values: Message | None) -> None:
        try:
            self._send(self._done(run, error, values))
        except Exception as trouble:
            # Whatever an error's own methods do, or however large a value is: the rank answers.
            self._shell.begin()
            told = RuntimeError(f"what came of it cannot be sent: {trouble}")
            described = self._shell.describe(told)
            self._send(RankDone(self.rank, run, "error", described, None, self._broken))

    def _perform(self, message: Message) -> Message | None:
        self._receive_names(message["names"], message["outdated"].get(self.rank, ()))
        self._namespace.watch(message["watched"])
        return self._values(message, self._execute(message))

    def _execute(self, message: Message) -> Any:
        if message["code"] is not None:
            error = self._shell.run(message["code"], *message["place"])
            if error is not None:
                if isinstance(error, KeyboardInterrupt):
                    _cancel_tasks()
                raise error
            return None
        cell_sources.register(message["cells"])
        try:
            call = blobs.unpack(message["call"], self._folder)
            return call()
        except BaseException as error:
            self._shell.format(error, skip=own_frames(error.__traceback__))
            raise

    def _receive_names(self, groups: list[Message], outdated: Sequence[str] = ()) -> None:
        try:
            self._namespace.receive(groups, outdated)
        except BaseException as error:
            error.add_note("before the cell began")
            self._shell.format(error, skip=own_frames(error.__traceback__))
            raise

    def _values(self, message: Message, result: Any) -> Message | None:
        try:
            if message["code"] is None:
                return self._namespace.pack(result)
            return self._namespace.pack_names(message["values"])
        except (NameError, SkyError) as problem:
            # It is about what was asked for, not about a line of the person's.
            self._shell.say(problem)
            raise

    def _done(self, run: str, error: BaseException | None, values: Message | None) -> RankDone:
        bound, arrived = self._namespace.changes(), self._namespace.arrived
        if error is None:
            return RankDone(self.rank, run, "ok", None, values, self._broken, bound, arrived)
        # What a collective raises when it is broken to stop it is no error of the person's.
        interrupted = self._interrupts.asked or isinstance(error, KeyboardInterrupt)
        outcome = "interrupted" if interrupted else "error"
        described = self._shell.describe(error)
        return RankDone(self.rank, run, outcome, described, None, self._broken, bound, arrived)

    # What the rank says

    def _display(self, kind: str, fields: dict[str, Any]) -> None:
        if os.getpid() != self._pid:
            print(fields["data"].get("text/plain", ""))
            return
        self._displays += 1
        event = Display(self.rank, self._run, kind, **fields).message()
        self._send_message({**event, "number": self._displays})
        # The agent reads what was printed before it answers; only then may more be printed.
        if threading.current_thread() is threading.main_thread():
            while (answer := self._frames.receive()) and answer["number"] < self._displays:
                pass

    def _send(self, event: Event) -> None:
        self._send_message(event.message())

    def _send_message(self, message: Message) -> None:
        self._interrupts.hold(self._send_whole, message)

    def _send_whole(self, message: Message) -> None:
        with self._sending:
            self._frames.send(message)

    def _flush(self) -> None:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        # What C code printed waits in buffers of the C library.
        _libc.fflush(None)


_libc = ctypes.CDLL(None)


def _cancel_tasks() -> None:
    """End what a cell has left on IPython's loop: it would go on in the next cell that awaits."""
    loop = get_asyncio_loop()
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks and not loop.is_running():
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.wait(tasks, timeout=0.2))


def take_streams(out: int, err: int) -> None:
    """Make two descriptors the standard output and error of this process, and close its input."""
    null = os.open(os.devnull, os.O_RDONLY)
    for source, target in ((null, 0), (out, 1), (err, 2)):
        os.dup2(source, target)
        os.close(source)
    sys.stdin = open(0, encoding="utf-8", closefd=False)  # noqa: SIM115
    sys.stdout = _text_stream(1)
    sys.stderr = _text_stream(2)
    vars(sys).update(__stdin__=sys.stdin, __stdout__=sys.stdout, __stderr__=sys.stderr)


def _text_stream(fd: int) -> io.TextIOWrapper:
    raw = io.FileIO(fd, "w", closefd=False)
    return io.TextIOWrapper(
        io.BufferedWriter(raw), encoding="utf-8", errors="backslashreplace", line_buffering=True
    )
