"""Calls that are sent to a rank one by one in the middle of a run, each answered when it is done.

If they run one at a time, they run in the main thread, like a cell: an interrupt reaches them
there, and frameworks that only support one thread work. Concurrent calls have a thread or a process
each.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import queue
import sys
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank import streams
from jupyter_sky.node.rank.calls import cancelling
from jupyter_sky.node.rank.calls.conversation import RankConversation
from jupyter_sky.node.rank.calls.parts import RankParts
from jupyter_sky.node.rank.calls.process import CallProcess, Mail
from jupyter_sky.node.rank.ipython.forked_child import end_child
from jupyter_sky.node.rank.namespace.namespace import own_frames
from jupyter_sky.serialization import blobs, cell_sources
from jupyter_sky.transport.protocol.calls import TellFields
from jupyter_sky.transport.protocol.error_report import ErrorReport
from jupyter_sky.transport.protocol.events import Told
from jupyter_sky.transport.protocol.rank_messages import RunCommand, TellCommand


class CallServer:
    """Carries out the calls of one run.

    Parameters
    ----------
    rank
        The rank.
    command
        The run, which says how many calls run at once, and where.

    Attributes
    ----------
    has_failed
        Whether a call has ended early. It may have begun collectives that its peers never will.
    """

    def __init__(self, rank: RankParts, command: RunCommand) -> None:
        assert command["serves"] is not None
        self._rank = rank
        self._run = command["run"]
        self._serving = command["serves"]
        self._interrupts = rank.interrupts
        self._reporting = threading.RLock()
        self._binding = threading.RLock()  # held while names are bound, and while a process forks
        self._closing = threading.Lock()
        self._is_over = False
        self.has_failed = False
        self._generation = 0  # incremented whenever names arrive
        self._unbound: dict[str, ErrorReport] = {}  # by name: why it could not be bound
        self._tasks: queue.SimpleQueue[TellCommand | None] = queue.SimpleQueue()
        self._workers: list[_Worker] = []
        self._later: deque[TellCommand] = deque()  # what arrived while a call waited
        self._mail: dict[int, Mail] = {}  # messages for each call in a thread or process

    def serve(self) -> None:
        """Carry out calls until the last; an interrupt is raised, and ends running calls."""
        has_workers = self._serving["concurrency"] > 1 or self._serving["executor"] == "process"
        with streams.several_calls() if has_workers else contextlib.nullcontext():
            self._serve(self._serving["concurrency"] if has_workers else 0)

    def _serve(self, workers: int) -> None:
        try:
            self._workers = [_Worker(self, self._tell) for _ in range(workers)]
            while (told := self._next()) and told["kind"] != "end":
                if told["kind"] != "call":
                    self._pass_on(told)
                elif not self._receive_names(told):
                    continue
                elif self._workers:
                    self._tasks.put(told)
                else:
                    self._say(self._carry_out(told))
                    self._interrupts.forget_raised()
        finally:
            with self._closing:
                self._is_over = True
            for worker in self._workers:
                self._tasks.put(None)
                worker.stop()
            for mail in list(self._mail.values()):
                mail.put(None)
            cancelling.end_run(self._run)

    def _next(self) -> TellCommand | None:
        return self._later.popleft() if self._later else self._rank.inbox.next_told(self._run)

    def _next_for(self, number: int) -> TellCommand | None:
        """Wait for a message to the call in the main thread; keep other messages for later."""
        while told := self._rank.inbox.next_told(self._run):
            if told["kind"] in ("call", "end"):
                self._later.append(told)
            elif told["number"] == number:
                return told
        return None

    def _pass_on(self, told: TellCommand) -> None:
        """Pass a message to the thread of a call, unless the call is over."""
        mail = self._mail.get(told["number"])
        if mail is None:
            return
        if not self._receive_names(told):
            mail.put(None)
        elif self._serving["executor"] == "thread":
            mail.put({**told, "names": []})
        else:
            mail.put(told)  # a process that was forked before needs the names, too

    def _receive_names(self, told: TellCommand) -> bool:
        """Bind the names that come with a call; report an error if they cannot be bound."""
        if not told["names"]:
            return True
        namespace, groups = self._rank.namespace, told["names"]
        try:
            with self._binding:
                self._interrupts.run_step(namespace.receive, groups)
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            missed = self._failed(told, error, "missed")
            if missed.error:
                lacking = [each for each in groups if each["shipment"] not in namespace.arrived]
                names = {name for each in lacking for name in each["names"]}
                self._unbound.update(dict.fromkeys(names, missed.error))
            self._say(missed)
            return False
        for name in {name for each in groups for name in each["names"]}:
            self._unbound.pop(name, None)
        self._generation += 1
        return True

    # In the main thread

    def _carry_out(self, told: TellCommand) -> Told:
        """Carry out a call; raises an interrupt."""
        over = self._interrupts.limit(told["timeout"])

        def wait() -> TellFields | None:
            # Only the waiting is interrupted: messages that were read for others are not lost.
            return self._interrupts.run_protected(self._next_for, told["number"])

        try:
            try:
                if not self.begins(told, lambda: self._interrupts.end_step(over)):
                    return self.stopped(told)
                return self._interrupts.run_step(self.answer, told, self._rank.tell, wait)
            finally:
                over.set()
                cancelling.end(self._run, told["number"])
        except KeyboardInterrupt as interrupt:
            if self._interrupts.is_late:
                return self.stopped(told, interrupt)
            if not self._interrupts.was_requested:  # the call itself has raised it
                return self._failed(told, interrupt)
            raise

    def begins(self, told: TellCommand, stop: Callable[[], object]) -> bool:
        """Set how to stop a call that begins; return whether the call is still wanted."""
        return cancelling.begin(self._run, told["number"], stop)

    def answer(
        self,
        told: TellCommand,
        tell: Callable[[Told], object],
        wait: Callable[[], TellFields | None],
    ) -> Told:
        """Carry out a call and return its result or error; only an interrupt is raised.

        Parameters
        ----------
        told
            The call.
        tell, wait
            As for a `RankConversation`.
        """
        notebook = RankConversation(self._rank, self._run, told["number"], tell, wait)
        pid = os.getpid()
        try:
            cell_sources.register(told["cells"])
            packed = told["packed"]
            assert packed is not None
            try:
                value = blobs.unpack(packed, self._rank.folder)(notebook)
            finally:
                if os.getpid() != pid:  # it would answer calls too
                    self._end_child(sys.exception())
            values = self._rank.namespace.pack(value, self._run, [self._rank.rank])
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            return self._failed(told, error)
        return Told(self._rank.rank, self._run, "value", told["number"], values)

    def answer_aside(
        self,
        told: TellCommand,
        tell: Callable[[Told], object],
        wait: Callable[[], TellFields | None],
    ) -> Told:
        """Carry out a call in a thread or process of its own, in which nobody interrupts it.

        Only a call whose time is over, or that was cancelled, raises an exception: `_Over`.
        """
        try:
            return self.answer(told, tell, wait)
        except _Over:
            raise
        except KeyboardInterrupt as error:  # the call itself has raised it
            return self._failed(told, error)

    def _end_child(self, error: BaseException | None) -> NoReturn:
        """End a process that a call has forked, where it would leave the call."""
        shell = self._rank.shell
        if error is not None:
            shell.record_traceback(error, skip=own_frames(error.__traceback__))
        end_child(error, shell.last_traceback)

    def stopped(self, told: TellCommand, interrupt: BaseException | None = None) -> Told:
        """Return the message about a call whose time is over, or that was cancelled."""
        timeout = told["timeout"]  # nobody reads the message about a cancelled call
        late = TimeoutError(f"it took longer than its {timeout:g} s" if timeout else "cancelled")
        late.__traceback__ = interrupt.__traceback__ if interrupt else None
        return self._failed(told, late)

    def _failed(self, told: TellCommand, error: BaseException, kind: str = "error") -> Told:
        self.has_failed = True
        with self._reporting:  # the shell can describe only one error at a time
            self._rank.shell.reset_traceback()
            self._rank.shell.record_traceback(error, skip=own_frames(error.__traceback__))
            report = self._rank.shell.report(error)
        if isinstance(error, NameError):  # other calls may have been sent before that was known
            report = self._unbound.get(error.name or "", report)
        return Told(self._rank.rank, self._run, kind, told["number"], error=report)

    def _say(self, event: Told) -> None:
        streams.flush()
        try:
            self._tell(event)
        except Exception as trouble:  # above all, it is too large for a message
            error = RuntimeError(f"what came of it cannot be sent: {trouble}")
            told: Any = {"number": event.number}
            self._tell(self._failed(told, error))

    def _tell(self, event: Told) -> None:
        """Tell the notebook something, unless the run is over: then that would look forged."""
        with self._closing:
            if not self._is_over:
                self._rank.tell(event)

    # In threads

    def work(self, worker: _Worker) -> None:
        """Carry out calls in a thread, one after the other, until the run is over."""
        try:
            while told := self._tasks.get():
                mail = self._mail[told["number"]] = Mail()
                if self._is_over:
                    mail.put(None)
                try:
                    if self._serving["executor"] == "thread":
                        answer = worker.carry_out(told, mail)
                    else:
                        answer = self._carry_out_in_process(worker, told, mail)
                except Exception as error:  # such as no memory, or no further thread
                    if worker.process:  # its pipe may be in the middle of an answer
                        worker.process.end()
                    answer = self._failed(told, error)
                self._end_call(told)
                self._say(answer)
        finally:
            if worker.process:
                worker.process.end()

    def _carry_out_in_process(self, worker: _Worker, told: TellCommand, mail: Mail) -> Told:
        """Carry out a call in the process of a thread."""
        process = worker.process
        if process is None or process.is_over or worker.generation != self._generation:
            # A process has the names that its rank had at the time of the fork.
            if process:
                process.end()
            worker.process, worker.generation = None, self._generation
            try:
                process = worker.process = self._new_process()
            except OSError as error:
                return self._failed(told, _no_process(self._rank.rank, error))
        if not self.begins(told, partial(process.stop, mail)):
            return self.stopped(told)
        answer = process.call(told, told["timeout"], mail)
        if answer is None:
            return self.stopped(told) if process.was_late else self._lost(told, process.reason)
        return answer

    def _new_process(self) -> CallProcess:
        # The child inherits locks in their present state. Only the forking thread continues in it,
        # so a lock held by another would never be released: that by which errors are reported, or
        # that of a module which names being bound import.
        with self._binding, self._reporting:
            return CallProcess(self.answer_aside, self._tell, self._rank.folder)

    def _end_call(self, told: TellCommand) -> None:
        cancelling.end(self._run, told["number"])
        del self._mail[told["number"]]

    def _lost(self, told: TellCommand, reason: str) -> Told:
        return Told(self._rank.rank, self._run, "lost", told["number"], reason=reason)


class _Worker:
    """A thread that carries out calls.

    As long as a thread runs Python code, an exception can be raised in it from outside. This is how
    a call ends when its time is over, or when the run is stopped.

    Attributes
    ----------
    process, generation
        The process in which its calls run, if they do, and which names that has.
    """

    def __init__(self, server: CallServer, tell: Callable[[Told], object]) -> None:
        self.process: CallProcess | None = None
        self.generation = -1
        self._server, self._tell = server, tell
        self._guard = threading.Lock()
        self._calling: int | None = None  # the number of the current call
        self._mail: Mail | None = None
        self._thread = threading.Thread(
            target=server.work, args=(self,), name="sky-call", daemon=True
        )
        self._thread.start()

    def stop(self, number: int | None = None) -> None:
        """End its current call, if it has this number; by default, any."""
        with self._guard:
            if self._calling is not None and number in (None, self._calling):
                thread = ctypes.c_ulong(self._thread.ident or 0)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(thread, ctypes.py_object(_Over))
                if self._mail:
                    self._mail.put(None)  # it may be waiting for mail

    def carry_out(self, told: TellCommand, mail: Mail) -> Told:
        """Carry out a call, whose messages arrive in ``mail``."""
        timeout = told["timeout"]
        # The timer may fire as the call ends, and wait until the next one has begun.
        stop = partial(self.stop, told["number"])
        timer = threading.Timer(timeout, stop) if timeout else None
        try:
            self._calling, self._mail = told["number"], mail
            try:
                if not self._server.begins(told, stop):
                    return self._server.stopped(told)
                if timer:
                    timer.start()
                with streams.written_by(told["number"]):
                    return self._server.answer_aside(told, self._tell, mail.get)
            finally:
                with self._guard:
                    self._calling = None
                _let_pending_exceptions_be_raised()
        except _Over as over:
            return self._server.stopped(told, over)
        finally:
            if timer:
                timer.cancel()


class _Over(KeyboardInterrupt):
    """Raised in a thread whose call has to end."""


def _no_process(rank: int, error: OSError) -> SkyError:
    return SkyError(
        f"rank {rank} could not start a process for the call ({error.strerror or error}): the node "
        "has too little memory, or too many processes; fewer at once need less, as with "
        "`sky.Worker(concurrency=1, executor='process')`."
    )


def _let_pending_exceptions_be_raised() -> None:
    """Do nothing: Python raises pending exceptions when a function begins."""
