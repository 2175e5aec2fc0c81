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
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank import scripts, streams
from jupyter_sky.node.rank.calls import cancelling
from jupyter_sky.node.rank.calls.conversation import RankConversation
from jupyter_sky.node.rank.calls.parts import RankParts
from jupyter_sky.node.rank.calls.server import CallServer
from jupyter_sky.node.rank.comparison.looker import Looker
from jupyter_sky.node.rank.debugger.rank_debugger import RankDebugger
from jupyter_sky.node.rank.group.jax_connection import CUT_OFF, is_cut_off
from jupyter_sky.node.rank.group.membership import GroupMembership
from jupyter_sky.node.rank.group.torch_groups import raise_failed
from jupyter_sky.node.rank.inbox import Inbox
from jupyter_sky.node.rank.inspection.inspector import Inspector
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython import event_loop, program, working_folder
from jupyter_sky.node.rank.ipython.forked_child import collect_nothing_inherited, end_child
from jupyter_sky.node.rank.ipython.shell import RankShell
from jupyter_sky.node.rank.metrics.recorder import MetricRecorder
from jupyter_sky.node.rank.namespace.gathering import Gatherer
from jupyter_sky.node.rank.namespace.namespace import Namespace, own_frames
from jupyter_sky.node.rank.preemption_hooks import PreemptionHooks
from jupyter_sky.node.rank.profiling.recording import recording
from jupyter_sky.node.rank.profiling.sampler import Sampler
from jupyter_sky.node.rank.unfinished_steps import drop_unfinished_steps
from jupyter_sky.node.rank.unseen_output import unseen
from jupyter_sky.node.volumes import opening
from jupyter_sky.serialization import blobs, cell_sources
from jupyter_sky.transport import present_run
from jupyter_sky.transport.blobs.packed import Packed
from jupyter_sky.transport.frames import BlockingFrames, ProtocolError
from jupyter_sky.transport.protocol.error_report import is_of_collective
from jupyter_sky.transport.protocol.events import Display, Event, Outcome, RankDone
from jupyter_sky.transport.protocol.messages import NameGroup
from jupyter_sky.transport.protocol.rank_messages import (
    NotReserved,
    ReserveCommand,
    Reserved,
    RunCommand,
    SideCommand,
)
from jupyter_sky.transport.rank_ranges import count, ranks_of

_FLUSH_EVERY = 0.1  # seconds
_ENDED_WITHIN = 0.3  # seconds after an error, for collectives that all ranks have begun

_CUT_IMPORT = (
    "The import of {library} was interrupted: if it does not work from now on, `%sky restart` "
    "gives the ranks new processes."
)


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
    spill
        The folder on disk for those for which there is no room; ``None`` for no such folder.
    """

    def __init__(
        self,
        rank: int,
        shell: RankShell,
        commands: socket.socket,
        side: socket.socket,
        inspector: Inspector,
        folder: Path,
        spill: Path | None,
    ) -> None:
        self.rank, self._shell, self._folder = rank, shell, folder
        self._frames = BlockingFrames(commands)
        self._side = BlockingFrames(side)
        self._sending = threading.Lock()
        self._namespace = Namespace(shell.user_ns, folder, spill, Gatherer(rank, folder))
        self._run: str | None = None
        self._calls: CallServer | None = None  # of the run, if it has some
        self._pid = os.getpid()
        self._interrupts = Interrupts()
        self._hooks = PreemptionHooks(rank, self._interrupts)
        self._inbox = Inbox(self._frames, self._interrupts)
        self._displays = 0
        receive, formed = self._receive_names, inspector.group_formed
        self._group = GroupMembership(rank, shell, self._interrupts, folder, receive, formed)
        self._begun_in = Path.cwd()
        self._inspector, self._sampler = inspector, Sampler(inspector.recorded)
        self._looker = Looker(rank, shell.user_ns, shell.user_ns_hidden)
        self._metrics = MetricRecorder(rank, self._send_event)
        self._debugger = RankDebugger(rank, shell, self._send_event, self._interrupts)
        shell.compile.on_named = inspector.write_names
        shell.attach(self)
        collect_nothing_inherited()

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
                    self._namespace.shares_files = command["topology"]["shares_files"]
                    is_idle = self._inspector.recorded.wait_until_ended(0.0)
                    self._send_event(self._group.form(command, is_idle))
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
                    streams.flush_aside()
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
                self._group.break_collective(command)
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
                self._hooks.announce(command)

    # The process group

    def _reserve_port(self, command: ReserveCommand) -> None:
        answer: Reserved | NotReserved
        try:
            port = self._group.head_ports.reserve(command["addr"])
            answer = {"reserved": command["number"], "port": port}
        except SkyError as error:
            answer = {"reserved": command["number"], "error": str(error)}
        self._send(answer)

    def _end(self) -> None:
        # No error of a plugin keeps the rank from ending.
        plugins = self._group.plugins
        for leave in (plugins.exit_app, plugins.exit_process):
            with contextlib.suppress(Exception):
                leave()

    # A run

    def _do_run(self, command: RunCommand) -> None:
        self._run = command["run"]
        self._group.begin_run(self._run)
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
        has_failed = error is not None or (self._calls is not None and self._calls.has_failed)
        cut_off = has_failed or self._interrupts.was_requested  # if the code has caught it
        ended = self._inspector.recorded.wait_until_ended
        left_collective = cut_off and (is_of_collective(error) or not ended(_ENDED_WITHIN))
        if cut_off:
            drop_unfinished_steps(self._interrupts.was_requested)
        if library := self._interrupts.deferral.cut_import:
            print(_CUT_IMPORT.format(library=library), file=sys.stderr)
        if is_cut_off(error):
            print(CUT_OFF, file=sys.stderr)
        self._debugger.end(error)
        streams.end_of_run()
        self._metrics.end()
        self._run = self._calls = None
        self._group.end_run(left_collective)
        self._report(command["run"], error, values)
        present_run.end(error is None)

    def _perform(self, command: RunCommand) -> Packed | None:
        is_call = (command["call"] or command["serves"]) is not None
        if command["code"] or (is_call and command["show"]):
            unseen.tell(self.rank, is_cell=not is_call)
        if command["after_cut_off"]:
            present_run.resume_after_cut_off()
        working_folder.find_again()
        self._namespace.begin_run(command["outdated"].get(self.rank, ()))
        # A script is a program of its own, which has the modules as they are now.
        cell = command["code"] if command["script"] is None else ""
        self._receive_names(command["names"], cell)
        self._interrupts.raise_pending()
        self._namespace.watch(command["watched"])
        result = self._execute(command)
        raise_failed()
        return self._pack_values(command, result) if command["call"] or command["asked"] else None

    def _receive_names(self, groups: Sequence[NameGroup], cell: str | None = "") -> None:
        try:
            self._namespace.receive(groups, cell)
        except BaseException as error:
            error.add_note("before the cell began")
            self._shell.record_traceback(error, skip=own_frames(error.__traceback__))
            raise

    def _execute(self, command: RunCommand) -> Any:
        if command["serves"] is not None:
            self._calls = CallServer(self._parts(), command)
            self._interrupts.run_protected(self._calls.serve)
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
        topology = self._group.topology
        assert topology is not None
        self._group.head_ports.release()  # the port was kept for what the script starts
        with self._as_sentence():
            begun_in, log = self._begun_in, self._metrics.log
            place = scripts.ScriptPlace(topology, self.rank, begun_in, self._folder, log)
            scripts.run(command, place, self._interrupts)

    def _pack_values(self, command: RunCommand, result: Any) -> Packed | None:
        run, everyone = command["run"], ranks_of(command["everyone"])
        with self._as_sentence():
            if command["call"] is not None:
                return self._namespace.pack(result, run, everyone)
            names = command["wanted"], command["asked"], command["of_one"]
            return self._namespace.pack_names(*names, run, everyone)

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
            self._send_event(
                RankDone(self.rank, run, "error", report, None, self._group.was_broken)
            )
        self._shell.is_failing = False

    def _done(self, run: str, error: BaseException | None, values: Packed | None) -> RankDone:
        outcome: Outcome = "ok"
        report = None
        bound = self._namespace.changes()
        if error is not None:
            # An interrupt broke the collective too: that error is not one of the user's.
            outcome = "interrupted" if self._interrupts.was_requested else "error"
            if outcome == "error" and isinstance(error, KeyboardInterrupt):
                self._shell.record_sentence(error)  # the user's own, of which it has no traceback
            report = self._shell.report(error)
        return RankDone(
            self.rank,
            run,
            outcome,
            report,
            values,
            self._group.was_broken,
            bound,
            self._namespace.arrived,
            stopped=self._interrupts.was_requested,
            begun=self._inspector.recorded.begun(),
        )

    # For the shell (`shell.ShellOwner`)

    def display(self, kind: str, fields: Mapping[str, Any]) -> None:
        """Send something that the user's code displays."""
        # In a child that the user's code has forked, or where `sky.stdout` silences this rank.
        if os.getpid() != self._pid or streams.is_silenced():
            if text := fields["data"].get("text/plain"):
                print(text)
            return
        self._displays += 1
        event = Display(self.rank, self._run, kind, **fields, call=streams.current_call())
        try:
            self._send({**event.message(), "number": self._displays})
        except ProtocolError as trouble:  # the cell may have worked for hours, and goes on
            text = (
                f"What rank {self.rank} displays here cannot be sent ({trouble}): "
                "write it to a file there, and fetch that with `%sky get`."
            )
            event = replace(event, data={"text/plain": text}, metadata={})
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
