"""The supervisor: starts the ranks of a node, gives them work, and replaces lost ones."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from jupyter_sky.errors import OTHERS_RUN
from jupyter_sky.node.supervisor.forgery import is_forged
from jupyter_sky.node.supervisor.inspection import Inspection
from jupyter_sky.node.supervisor.looking import Looking
from jupyter_sky.node.supervisor.output.log_file import RankLogs
from jupyter_sky.node.supervisor.output.output_forwarder import OutputForwarder, Publish
from jupyter_sky.node.supervisor.processes import exit_reason
from jupyter_sky.node.supervisor.processes.fork_client import ForkClient
from jupyter_sky.node.supervisor.processes.restarts import Restarts
from jupyter_sky.node.supervisor.profiling import Profiles, Records
from jupyter_sky.node.supervisor.prompting import Prompting
from jupyter_sky.node.supervisor.rank_process import RankProcess, shared_fields
from jupyter_sky.node.supervisor.reservations import Reservations
from jupyter_sky.node.supervisor.stop import Stopper
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.protocol.agent_spec import RankSpec
from jupyter_sky.transport.protocol.calls import TellRequest
from jupyter_sky.transport.protocol.events import Event, Output, Prepared, RankExited, RankStarted
from jupyter_sky.transport.protocol.messages import RunRequest
from jupyter_sky.transport.protocol.rank_messages import LeavingCommand
from jupyter_sky.transport.protocol.topology import FormRequest
from jupyter_sky.transport.rank_ranges import among
from jupyter_sky.transport.tasks import Changes

END_WITHIN = 3.0
"""Seconds that ranks get to leave their plugins before they are killed."""

VISIBLE_GPUS = "CUDA_VISIBLE_DEVICES"

_KILL_EVERY = 0.1  # seconds to wait for removed ranks that have not ended: some are forked late
_MOSTLY_EMPTY = ("error", "values", "broken", "bound", "tail", "stopped", "begun")  # of `RankDone`


class Supervisor:
    """The ranks of a node.

    Parameters
    ----------
    specs
        The ranks to start with.
    fork_server
        Socket to the fork server, which forks them.
    logs
        Their logs.
    publish
        Publishes events, as messages.
    on_lost
        Called when the fork server has ended, and all ranks with it.
    is_attended, unanswered
        Returns whether a notebook is connected; seconds until ranks leave a prompt (`Prompting`).
    on_waiting
        Called when a rank may have begun to wait for its notebook.

    Attributes
    ----------
    ranks
        The ranks by number.
    versions
        The versions of packages that the fork server has imported; ``None`` until it has.
    renewed_variables
        Variables with other values than ranks were specified with: processes start with them.
    stopper, inspection, profiles, records, looking, prompting, reservations
        Parts that stop ranks, inspect and profile them, keep their recordings, ask for their
        variables, pass on the user's answers, and have the head reserve ports.
    """

    def __init__(
        self,
        specs: Sequence[RankSpec],
        fork_server: socket.socket,
        logs: RankLogs,
        publish: Publish,
        on_lost: Callable[[], object],
        is_attended: Callable[[], bool],
        unanswered: float | None,
        on_waiting: Callable[[], object],
    ) -> None:
        self.ranks: dict[int, RankProcess] = {}
        self.versions: dict[str, str] | None = None
        self.stopper = Stopper(self.ranks)
        self.inspection = Inspection(self.ranks, self.stopper.was_stopped)
        self.profiles = Profiles(self.ranks, self.inspection.written_stack)
        self.records = Records()
        self.looking = Looking(self.ranks, self.inspection.is_alive)
        self.prompting = Prompting(self.ranks, is_attended, unanswered)
        self.reservations = Reservations(self.ranks)
        self._on_answer: dict[str, Callable[[RankProcess, Message], object]] = {
            "reserved": self.reservations.on_answer,
            "inspected": self.inspection.on_answer,
            "sampled": self.profiles.on_sampled,
            "code_over": self.stopper.on_code_over,
            "recorded": self.records.add,
            "looked": self.looking.on_answer,
        }
        self._specs: dict[int, RankSpec] = {}
        self.renewed_variables: dict[str, str] = {}
        self._fork_server = ForkClient(fork_server, self)
        self._logs, self._publish, self._is_attended = logs, publish, is_attended
        self._output = OutputForwarder(publish)
        self._on_lost, self._on_waiting = on_lost, on_waiting
        self._removed: list[RankProcess] = []
        self._forgers: set[int] = set()
        self._restarts = Restarts()
        self._exit_reasons = exit_reason.ExitReasons()
        self._nodes: list[list[int]] = []
        self._is_ending = self._has_gpus = False
        self._ends = Changes(())  # of processes, or of waiting for them
        for spec in specs:
            self._add(spec)

    @property
    def is_busy(self) -> bool:
        """Whether any rank has a run, and does not wait for a notebook that is gone."""
        has_run = any(process.run for process in self.ranks.values())
        return has_run if self._is_attended() else self.is_working

    @property
    def is_working(self) -> bool:
        """Whether any rank has something to do, and does not wait for its notebook."""
        runs = [process for process in self.ranks.values() if process.run]
        return not all(process.latest.waiting.is_for_notebook for process in runs)

    # Starting and ending ranks

    def variables(self, rank: int) -> Mapping[str, str] | None:
        """Return a rank's own environment variables; ``None`` if it is not here."""
        return self._env(rank) if rank in self.ranks else None

    def start(self) -> None:
        """Request the processes of all ranks; they are forked once the fork server is ready."""
        self._fork_server.start()
        for rank in self.ranks:
            self._fork(rank)

    def add(self, specs: Sequence[RankSpec]) -> None:
        """Start further ranks."""
        for spec in specs:
            if spec.rank not in self.ranks:
                self._add(spec)
                self._fork(spec.rank)

    async def remove(self, ranks: Sequence[int]) -> None:
        """End ranks for good, and wait until they have ended."""
        former = [self.ranks.pop(rank) for rank in ranks if rank in self.ranks]
        # A rank that is not restarted has no process to wait for.
        removed = {each for each in former if each.pid or self._fork_server.is_forking(each)}
        self._removed += removed
        for process in removed:
            process.send({"op": "end"})
        patience = END_WITHIN
        while not await self._until(lambda: removed.isdisjoint(self._removed), patience):
            patience = _KILL_EVERY
            for process in removed:
                process.signal(signal.SIGKILL)

    def kill(self, ranks: Sequence[int], within: float) -> None:
        """End processes, idle ones within so many seconds; fresh ones take their place."""
        for rank in ranks:
            if rank in self.ranks:
                self._restarts.on_killed(self.ranks[rank].pid or 0)
                self.ranks[rank].end(within)

    async def end(self) -> None:
        """End all ranks, and wait until they have ended, within limits."""
        self._is_ending = True
        for process in self.ranks.values():
            if process.run:
                process.signal(signal.SIGINT)
            process.send({"op": "end"})
        await self._until(lambda: not any(each.pid for each in self.ranks.values()), END_WITHIN)

    async def _until(self, condition: Callable[[], bool], within: float) -> bool:
        """Wait until a condition holds, which the ends of processes change; return whether so."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within):
                while not condition():
                    await self._ends.next()
        return condition()

    def _add(self, spec: RankSpec) -> None:
        rank = spec.rank
        self._specs[rank] = spec
        self._has_gpus |= VISIBLE_GPUS in spec.env
        self._restarts.forget(rank)
        log = self._logs.open(rank)
        self.ranks[rank] = RankProcess(rank, log, self._on_message, self._output.forward)

    def _env(self, rank: int) -> Mapping[str, str]:
        return {**self._specs[rank].env, **self.renewed_variables}

    def _fork(self, rank: int) -> None:
        process = self.ranks[rank]
        try:
            self._fork_server.fork(process, self._env(rank))
        except OSError as error:
            self.on_not_forked(process, error.strerror or str(error))

    def _fork_again(self, process: RankProcess) -> None:
        if self.ranks.get(process.rank) is process and not self._is_ending:
            self._fork(process.rank)

    # Messages to ranks

    def run(self, request: RunRequest) -> Message | None:
        """Let ranks carry out a run; return why they cannot, in which case none has begun."""
        if self.stopper.was_stopped(request["run"]):
            return {"error": "the run was stopped before it began"}
        processes = [self.ranks[rank] for rank in among(request["ranks"], self.ranks)]
        for process in processes:
            again: Message = {"error": f"rank {process.rank} is being started again: run it again"}
            if process.is_ending:  # which who asks does not know before it has ended
                return {**again, "busy": True}
            if process.pid is None or process.generation != request["generation"]:
                return again
            if process.run:
                return {"error": f"rank {process.rank} is {OTHERS_RUN}: run it again", "busy": True}
        self.stopper.run_begins(request["together"], request["deadline"])
        shared = shared_fields(request)
        for process in processes:
            process.send_run(request, shared, self._gpus_beside(process.rank))
        return None

    def tell(self, request: TellRequest) -> None:
        """Send a rank a message in the middle of a run, unless it has finished the run."""
        process = self.ranks.get(request["rank"])
        if process and process.run == request["run"]:
            process.send_tell(request)

    def _gpus_beside(self, rank: int) -> str | None:
        """Return all GPUs of the ranks on a rank's node, if these do not all see the same."""
        if not self._has_gpus:
            return None
        node = next((ranks for ranks in self._nodes if rank in ranks), [rank])
        specs = [self._specs[each] for each in node if each in self._specs]
        seen = [spec.env[VISIBLE_GPUS] for spec in specs if VISIBLE_GPUS in spec.env]
        return ",".join(dict.fromkeys(seen)) or None

    def form(self, request: FormRequest) -> None:
        """Let ranks enter a process group."""
        self.stopper.group_forms(request["topology"])
        self._nodes = [node["ranks"] for node in request["topology"]["nodes"]]
        for rank in request["ranks"]:
            if process := self.ranks.get(rank):
                process.send_form(request, self.stopper.peers_of(process))

    def announce_leaving(self, message: Message) -> None:
        """Tell all ranks of an event `Leaving`, of this agent or of another."""
        command = cast(LeavingCommand, {**message, "op": "leaving"})
        for process in self.ranks.values():
            process.send_aside(command)

    # Messages from ranks

    def _on_message(self, process: RankProcess, message: Message) -> None:
        if is_forged(process, message):
            self._report_forgery(process)
            return
        for kind, on_answer in self._on_answer.items():
            if kind in message:
                on_answer(process, message)
                return
        is_urgent = True
        match message["event"]:
            case "rank_done":
                self._on_done(process, message)
                goes_on = message["run"] in [each.run for each in self.ranks.values()]
                is_urgent = message["outcome"] != "ok" or not goes_on
            case "formed":
                if message["generation"] in process.formations:
                    process.formations.remove(message["generation"])
                process.generation = 0 if message["error"] else message["generation"]
            case "told":
                process.latest.waiting.on_told(message)
                self._on_waiting()
                if message["kind"] in ("waits", "goes_on"):
                    return
            case "prompted":
                self.prompting.on_prompted(process, message)
            case "display":
                process.send({"op": "displayed", "number": message.pop("number")})
                self._output.forward_display(process, message)
                return
        self._publish(message, None, is_urgent)

    def _report_forgery(self, process: RankProcess) -> None:
        """Report, once per process, that it spoke for another rank or for the agent."""
        if process.pid not in self._forgers:
            self._forgers.add(process.pid or 0)
            text = f"rank {process.rank} sent a message that is not its to send: it was dropped\n"
            process.log.append(text.encode())
            self._publish_event(Output(process.rank, process.run, "stderr", text.encode()))

    def _on_done(self, process: RankProcess, message: Message) -> None:
        is_hidden = process.runs_script and process.latest.output is None
        self._output.flush(process)
        if message["error"] is not None and message["outcome"] == "error":
            # What it wrote says why it failed, and nobody has seen it.
            unseen = exit_reason.last_lines_of_script(process) if is_hidden else []
            # So that the log says how the run ended.
            text = "\n".join([*message["error"]["traceback"], ""])
            process.log.index.add("stderr", process.log.append(text.encode(errors="replace")))
            message["error"]["traceback"][:0] = unseen
        message["tail"] = process.tail()
        message["seconds"] = asyncio.get_running_loop().time() - process.latest.began
        process.run, process.ended = None, process.run
        process.generation = 0 if message["broken"] else process.generation
        process.confirm_names(message["arrived"])
        self._restarts.forget(process.rank)
        if message["outcome"] == "error":
            self.stopper.stop_after_failure(message["run"])
        for name in [each for each in _MOSTLY_EMPTY if not message[each]]:
            del message[name]  # the event is equivalent without it, and is read by the thousand

    # Messages from the fork server

    def on_imported(self, versions: dict[str, str], missing: dict[str, str]) -> None:
        """Remember what the fork server has imported."""
        self.versions = versions
        self._publish_event(Prepared(versions, missing))

    def on_forked(self, process: RankProcess) -> None:
        """Publish that a rank has started, unless it was removed meanwhile."""
        self._restarts.on_forked(process.rank)
        if process not in self._removed:
            self._publish_event(RankStarted(process.rank, process.pid or 0))

    def on_not_forked(self, process: RankProcess, reason: str) -> None:
        """Report that a rank could not be forked, and try again: the shortage may be temporary."""
        process.close()
        self._ends.tell()
        if process in self._removed:
            self._removed.remove(process)
            return
        failed = self._restarts.on_not_forked(process.rank)
        text = f"the system could not start its process ({reason})"
        process.given_up = None if failed.goes_on else text
        if failed.is_news:
            self._publish_event(RankExited(process.rank, 0, text, None, "", failed.goes_on))
        asyncio.get_running_loop().call_later(failed.pause, self._fork_again, process)

    def on_late(self, process: RankProcess) -> None:
        """Report that a rank does not start; it may yet."""
        if self.ranks.get(process.rank) is process:
            text = "its new process does not start: the fork server of its node does not answer"
            self._publish_event(RankExited(process.rank, 0, text, None, ""))

    def on_exited(self, pid: int, status: int) -> None:
        """Clean up after a process that has ended, and request a new one."""
        processes = [*self.ranks.values(), *self._removed]
        process = next((each for each in processes if each.pid == pid), None)
        if process is None:
            return
        self._ends.tell()
        is_removed = process in self._removed
        if is_removed:
            self._removed.remove(process)
        if is_removed or self._is_ending:
            process.close()
            return
        again = self._restarts.is_worthwhile(process.rank, pid, has_run=process.run is not None)
        self._lose(process, self._exit_reasons.explain(status, process), again)
        if again:
            self._fork(process.rank)

    def on_fork_server_lost(self) -> None:
        """End the node: nothing can fork new ranks."""
        self._ends.tell()
        for process in self.ranks.values():
            process.signal(signal.SIGKILL)
            process.drain()
            self._output.flush(process)
            process.close()  # untold: if its run were over before its node, it would try again here
        self._on_lost()

    def _lose(self, process: RankProcess, reason: str, again: bool) -> None:
        pid, run, deaf = process.pid or 0, process.run, bool(process.ignored_stop)
        process.drain()
        self._output.flush(process)
        said = exit_reason.last_lines(process)
        process.close()
        process.given_up = None if again else reason
        if process.rank == 0:
            self.reservations.fail(f"rank 0 is lost, {reason}")
        self._publish_event(RankExited(process.rank, pid, reason, run, said, again, deaf))
        if run:
            self.stopper.stop_after_loss(run)

    def _publish_event(self, event: Event) -> None:
        self._publish(event.message(), None)
