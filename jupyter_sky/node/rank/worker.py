"""A rank: one process of the group. It carries out the commands of its agent, one after the other.

The main thread runs the user's code. A side thread listens on a socket of its own, for what has to
reach the rank while the main thread is busy, perhaps inside of a collective.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank import collective_abort, env_vars, preemption_hooks, scripts, streams
from jupyter_sky.node.rank.calls import cancelling
from jupyter_sky.node.rank.calls.conversation import RankConversation
from jupyter_sky.node.rank.calls.parts import RankParts
from jupyter_sky.node.rank.calls.server import CallServer
from jupyter_sky.node.rank.comparison.looker import Looker
from jupyter_sky.node.rank.debugger.rank_debugger import RankDebugger
from jupyter_sky.node.rank.head_ports import HeadPorts
from jupyter_sky.node.rank.inbox import Inbox
from jupyter_sky.node.rank.inspection.inspector import Inspector
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import event_loop, program
from jupyter_sky.node.rank.ipython.forked_child import end_child
from jupyter_sky.node.rank.ipython.shell import RankShell
from jupyter_sky.node.rank.metrics.recorder import MetricRecorder
from jupyter_sky.node.rank.namespace.gathering import Gatherer
from jupyter_sky.node.rank.namespace.namespace import Namespace, own_frames
from jupyter_sky.node.rank.plugin_hooks import RankPlugins
from jupyter_sky.node.rank.profiling.recording import recording
from jupyter_sky.node.rank.profiling.sampler import Sampler
from jupyter_sky.node.rank.torch_groups import raise_failed
from jupyter_sky.node.rank.unfinished_steps import drop_unfinished_steps
from jupyter_sky.node.volumes import opening
from jupyter_sky.serialization import blobs, cell_sources
from jupyter_sky.transport import present_run
from jupyter_sky.transport.frames import BlockingFrames
from jupyter_sky.transport.protocol.error_report import is_of_collective
from jupyter_sky.transport.protocol.events import Display, Event, Formed, Outcome, RankDone
from jupyter_sky.transport.protocol.messages import NameGroup, Packed
from jupyter_sky.transport.protocol.rank_messages import (
    BreakCommand,
    FormCommand,
    ReserveCommand,
    Reserved,
    RunCommand,
    SideCommand,
)
from jupyter_sky.transport.protocol.topology import Topology
from jupyter_sky.transport.rank_ranges import count, ranks_of

_FLUSH_EVERY, _ENDED_WITHIN = 0.1, 0.3
"""Seconds between flushes, and after an error for collectives that all ranks have begun."""


class RankWorker:
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
    inspector
        Tells what the rank is doing.
    folder
        Where the node's blobs are.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        commands: socket.socket,
        side: socket.socket,
        inspector: Inspector,
        folder: Path,
    ) -> None:
        self.rank, self._shell, self._folder = rank, shell, folder
        self._frames = BlockingFrames(commands)
        self._side = BlockingFrames(side)
        self._sending = threading.Lock()
        self._namespace = Namespace(shell.user_ns, folder, Gatherer(rank, folder))
        self._run: str | None = None
        self._forming: int | None = None
        self._listened: Collection[str] = ()  # at which sockets, before the group began to form
        self._pid = os.getpid()
        # Held while the run or the formation ends: what the side thread breaks is still going on.
        self._ending = threading.Lock()
        self._interrupts = Interrupts()
        self._inbox = Inbox(self._frames, self._interrupts)
        self._was_broken = self._left_collective = False
        self._displays = self._peers = 0
        self._plugins = RankPlugins(folder)
        self._head = HeadPorts()
        self._topology: Topology | None = None
        self._begun_in = Path.cwd()
        self._inspector, self._sampler = inspector, Sampler(inspector.recorded)
        self._looker = Looker(rank, shell.user_ns, shell.user_ns_hidden)
        self._metrics = MetricRecorder(rank, self._send_event)
        self._debugger = RankDebugger(rank, shell, self._send_event, self._interrupts)
        shell.compile.on_named = inspector.write_names
        shell.attach(self)

    def serve(self) -> None:
        """Carry out commands until the agent says that this is the end, or is gone."""
        threading.Thread(target=self._listen_aside, name="sky-side", daemon=True).start()
        self._interrupts.run_protected(self._carry_out_commands)

    def _carry_out_commands(self) -> None:
        while command := self._inbox.next_command(partial(present_run.tell_end, self.rank)):
            match command["op"]:
                case "run":
                    self._do_run(command)
                case "reserve":
                    self._reserve_port(command)
                case "form":
                    self._form(command)
                case "end":
                    break
        self._end()

    # The side thread

    def _listen_aside(self) -> None:
        while True:
            # Of two that came at once the second has been read already.
            there = self._side.has_message
            if not there and not select.select([self._side.sock], [], [], _FLUSH_EVERY)[0]:
                # So that a line without an end, like a prompt, is seen too.
                with contextlib.suppress(Exception):  # the user may have put something else there
                    sys.stdout.flush()
                    self._inspector.write_names()
                continue
            message = self._side.receive()
            if message is None:
                return
            with streams.errors_printed():  # without this thread, Stop would not be heard any more
                self._carry_out_aside(cast(SideCommand, message))

    def _carry_out_aside(self, command: SideCommand) -> None:
        match command["op"]:
            case "break":
                self._break_collective(command)
            case "cancel":
                cancelling.cancel(command)
            case "inspect":
                at_prompt, is_failing = self._debugger.at_prompt(), self._shell.is_failing
                self._send(self._inspector.answer(command, *at_prompt, is_failing))
            case "sample":
                self._sampler.begin(command, self._send)
            case "look":
                self._looker.look(command, self._send)
            case "answer" | "hold":
                self._debugger.on_aside(command)
            case "leaving":
                preemption_hooks.run_hooks(self.rank, command, self._interrupts)

    def _break_collective(self, command: BreakCommand) -> None:
        with self._ending:
            # A run that is over has nothing to be released from, and one in which the interrupt was
            # raised may be saving something.
            busy = self._run if self._forming is None else self._forming
            force = command["force"]
            if busy != command["run"] or (self._interrupts.was_raised and not force):
                return
            store = command["store"] and (command["store"][0], command["store"][1])
            was_broken = command["in_collective"] and collective_abort.break_group(
                command["siblings"], command["addresses"], store
            )
            self._was_broken = self._was_broken or was_broken
            if self._forming is not None:
                collective_abort.release_waiting_pairs(self._listened, self._peers)
            # Again, for a run that had not begun when the first interrupt came.
            self._interrupts.repeat(force)

    # The process group

    def _reserve_port(self, command: ReserveCommand) -> None:
        port = self._head.reserve(command["addr"])
        answer: Reserved = {"reserved": command["number"], "port": port}
        self._send(answer)

    def _form(self, command: FormCommand) -> None:
        error = None
        topology = self._topology = command["topology"]
        self._listened = collective_abort.listening_sockets()
        self._peers = sum(len(node["ranks"]) for node in topology["nodes"]) - 1
        self._forming = generation = topology["generation"]
        try:
            # The former group is left as a whole, uninterrupted: half would spoil the next one.
            if self._left_collective:
                collective_abort.break_group(command["siblings"], command["addresses"])
            self._plugins.exit_app()
            collective_abort.close_broken()
            self._left_collective = False
            self._interrupts.run_interruptible(self._enter, command)
        except BaseException as problem:
            self._shell.record_traceback(problem, skip=2)
            error = self._shell.report(problem)
        with self._ending:
            self._forming = None
        self._send_event(Formed(self.rank, generation, error))

    def _enter(self, command: FormCommand) -> None:
        os.environ.update(env_vars.variables(command["topology"], self.rank))
        self._head.hand_over(command["topology"]["head_port"])
        self._receive_names(command["names"])
        self._plugins.enter_process(command["life"])
        self._inspector.group_formed()
        self._plugins.enter_app()
        self._was_broken = False

    def _end(self) -> None:
        # No error of a plugin keeps the rank from ending.
        for leave in (self._plugins.exit_app, self._plugins.exit_process):
            with contextlib.suppress(Exception):
                leave()

    # A run

    def _do_run(self, command: RunCommand) -> None:
        self._run = command["run"]
        opening.watch(self._folder)
        program.begin(command)
        self._looker.run_begins()
        self._metrics.begin(self._run, count(command["everyone"]))
        present_run.begin(command, self.rank, self._send_event)
        self._shell.reset_traceback()
        self._debugger.begin(command)
        error: BaseException | None = None
        values = None
        try:
            with recording(command["records"], command["run"], self._send):
                values = self._interrupts.run_interruptible(self._perform, command)
        except BaseException as problem:
            error = problem
        if os.getpid() != self._pid:
            end_child(error, self._shell.last_traceback)
        ended = self._inspector.recorded.wait_until_ended
        cut_off = error is not None or self._interrupts.was_requested  # if the code has caught it
        if cut_off and (is_of_collective(error) or not ended(_ENDED_WITHIN)):
            # It has left a collective that its peers may never begin: the next of theirs would meet
            # it, and they would hang or mix up their values. What has failed is closed for good.
            self._was_broken = self._left_collective = True
        if cut_off:
            drop_unfinished_steps(self._interrupts.was_requested)
        self._debugger.end(error)
        streams.end_of_run()
        self._metrics.end()
        with self._ending:
            self._run = None
            self._was_broken |= self._plugins.has_lost_group
        self._report(command["run"], error, values)
        present_run.end(error is None)

    def _perform(self, command: RunCommand) -> Packed | None:
        if command["after_cut_off"]:
            present_run.resume_after_cut_off()
        self._namespace.begin_run(command["outdated"].get(self.rank, ()))
        self._receive_names(command["names"])
        self._namespace.watch(command["watched"])
        result = self._execute(command)
        raise_failed()
        return self._pack_values(command, result) if command["call"] or command["asked"] else None

    def _receive_names(self, groups: Sequence[NameGroup]) -> None:
        try:
            self._namespace.receive(groups)
        except BaseException as error:
            error.add_note("before the cell began")
            self._shell.record_traceback(error, skip=own_frames(error.__traceback__))
            raise

    def _execute(self, command: RunCommand) -> Any:
        if command["serves"] is not None:
            self._interrupts.run_protected(CallServer(self._parts(), command).serve)
            return None
        if command["script"] is not None:
            self._run_script(command)
            return None
        if command["debugging"]["looks_at"] is not None:
            with self._as_sentence():
                self._debugger.look_at(command["debugging"]["looks_at"])
            return None
        if command["code"] is not None:
            error = self._shell.run(command["code"], *command["place"], command["program"])
            if error is not None:
                if isinstance(error, KeyboardInterrupt):
                    event_loop.cancel_tasks()
                self._debugger.on_error(error)
                raise error
            return None
        assert command["call"] is not None
        cell_sources.register(command["cells"])
        try:
            call = blobs.unpack(command["call"], self._folder)
            talk = (RankConversation(self._parts(), command["run"]),) if command["talks"] else ()
            return call(*talk)
        except BaseException as error:
            self._shell.record_traceback(error, skip=own_frames(error.__traceback__))
            raise

    def _run_script(self, command: RunCommand) -> None:
        assert self._topology is not None
        self._head.release()  # the port was kept for what the script starts
        with self._as_sentence():
            begun_in, log = self._begun_in, self._metrics.log
            place = scripts.ScriptPlace(self._topology, self.rank, begun_in, self._folder, log)
            scripts.run(command, place, self._interrupts)

    def _pack_values(self, command: RunCommand, result: Any) -> Packed | None:
        run, everyone = command["run"], ranks_of(command["everyone"])
        with self._as_sentence():
            if command["call"] is not None:
                return self._namespace.pack(result, run, everyone)
            return self._namespace.pack_names(command["values"], command["asked"], run, everyone)

    @contextlib.contextmanager
    def _as_sentence(self) -> Iterator[None]:
        try:
            yield
        except (NameError, SkyError) as problem:
            # It is about what was asked for, not about a line of the user's.
            self._shell.record_sentence(problem)
            raise

    def _report(self, run: str, error: BaseException | None, values: Packed | None) -> None:
        try:
            self._send_event(self._done(run, error, values))
        except Exception as trouble:
            # Whatever an error's own methods do, or however large a value is: the rank answers.
            self._shell.reset_traceback()
            report = self._shell.report(RuntimeError(f"its result cannot be sent: {trouble}"))
            self._send_event(RankDone(self.rank, run, "error", report, None, self._was_broken))
        self._shell.is_failing = False

    def _done(self, run: str, error: BaseException | None, values: Packed | None) -> RankDone:
        outcome: Outcome = "ok"
        report = None
        bound, arrived = self._namespace.changes(), self._namespace.arrived
        if error is not None:
            # An interrupt broke the collective too: that error is not one of the user's.
            outcome = "interrupted" if self._interrupts.was_requested else "error"
            if outcome == "error" and isinstance(error, KeyboardInterrupt):
                self._shell.record_sentence(error)  # the user's own, of which it has no traceback
            report = self._shell.report(error)
        done = (self.rank, run, outcome, report, values, self._was_broken, bound, arrived)
        return RankDone(*done, stopped=self._interrupts.was_requested)

    # For the shell (`shell.ShellOwner`)

    def display(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send something that the user's code displays."""
        if os.getpid() != self._pid:  # in a child that the user's code has forked
            print(fields["data"].get("text/plain", ""))
            return
        self._displays += 1
        event = Display(self.rank, self._run, kind, **fields, call=streams.current_call())
        self._send({**event.message(), "number": self._displays})
        # The agent reads what was printed before it answers; only then may more be printed.
        if threading.current_thread() is threading.main_thread():
            self._inbox.wait_displayed(self._displays)

    def run_ignoring_interrupts(
        self, function: Callable[..., None], *args: Any, **kwargs: Any
    ) -> None:
        """Call a function in which an interrupt is not raised; the agent repeats it."""
        self._interrupts.run_ignoring(function, *args, **kwargs)

    def _parts(self) -> RankParts:
        inbox, interrupts, namespace = self._inbox, self._interrupts, self._namespace
        shell, folder, tell = self._shell, self._folder, self._send_event
        return RankParts(self.rank, inbox, interrupts, namespace, shell, folder, tell)

    # What the rank sends

    def _send_event(self, event: Event) -> None:
        self._send(event.message())

    def _send(self, message: Mapping[str, Any]) -> None:
        self._interrupts.run_protected(self._send_whole, message)

    def _send_whole(self, message: Mapping[str, Any]) -> None:
        with self._sending:
            self._frames.send(message)
