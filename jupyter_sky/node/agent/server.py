"""The agent: the process that supervises a node, and outlives every link to it.

Clients come and go on a Unix socket; the agent keeps the journal of events, the blobs, and the
ranks. It never unpickles anything: values pass through it as bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import signal
import socket
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import jupyter_sky
from jupyter_sky.node.agent import stale_files
from jupyter_sky.node.agent.client_session import ClientSession, ClientSessions
from jupyter_sky.node.agent.events.event_publisher import EventPublisher
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.node.agent.idle import IdleTimer, IdleTimes
from jupyter_sky.node.agent.listener import listen
from jupyter_sky.node.agent.logs import Logs
from jupyter_sky.node.agent.request_cache import Answer, RequestCache
from jupyter_sky.node.agent.requests import RequestHandlers
from jupyter_sky.node.agent.usage.metrics import UsageMeter
from jupyter_sky.node.agent.usage.recorder import UsageRecorder
from jupyter_sky.node.blobs.blob_folder import BlobFolder
from jupyter_sky.node.blobs.relay import BlobRelay
from jupyter_sky.node.blobs.store import store_of_node
from jupyter_sky.node.forking.ending import end_in_time
from jupyter_sky.node.network.peers import HANDSHAKE_WITHIN, PeerAgents, PeerStream
from jupyter_sky.node.packages.installer import PackageInstaller
from jupyter_sky.node.ports.ports import Ports
from jupyter_sky.node.shells.shells import Shells
from jupyter_sky.node.supervisor.forming_turns import FormingTurns
from jupyter_sky.node.supervisor.left_runs import LeftRuns
from jupyter_sky.node.supervisor.output.log_file import RankLogs
from jupyter_sky.node.supervisor.run_queue import RunQueue
from jupyter_sky.node.supervisor.supervisor import Supervisor
from jupyter_sky.node.volumes.volumes import Volumes
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.metrics.usage_history import EVERY
from jupyter_sky.transport.protocol.agent_spec import AgentSpec
from jupyter_sky.transport.protocol.events import Ending, Leaving
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.tasks import BackgroundTasks, take_each

if TYPE_CHECKING:
    from jupyter_sky.node.agent.notices import Notice

MOST_CLIENTS = 256  # that are connected at a time, all of them this user's

REPORT_EVERY = 0.5
"""Seconds between two reports of what ranks use, while something runs."""

LOOK_AROUND_EVERY = 10.0
"""Seconds after which an agent without a notebook looks whether it can still be of use."""

_MISSED = 2  # times that nothing is found to stay for
_HEARD_WITHIN = 2.0  # seconds within which a connected notebook shows a sign of life


def main(
    folder: Path,
    spec: AgentSpec,
    addr: str,
    fork_server: socket.socket,
    fork_server_pid: int,
    ready: Callable[[int], None],
) -> None:
    """Run the agent of ``folder`` until it ends; call ``ready`` with its port for other agents."""

    async def serve() -> None:
        await Agent(folder, spec, fork_server, fork_server_pid).serve(addr, ready)

    asyncio.run(serve())


class Agent:
    """Makes the parts of a node's agent, and controls its start and end.

    Parameters
    ----------
    folder
        The node's folder.
    spec
        The specification, from the provider.
    fork_server, fork_server_pid
        Socket to the fork server, and its process id.
    """

    def __init__(
        self, folder: Path, spec: AgentSpec, fork_server: socket.socket, fork_server_pid: int
    ) -> None:
        self._folder = folder
        self._spec = spec
        self._fork_server = fork_server
        self._fork_server_pid = fork_server_pid
        logs = RankLogs(folder / "logs")
        self.journal = Journal(folder, logs.read)
        self.store = store_of_node(folder, Path(spec.blobs), spec.blob_limit)
        self._sessions = ClientSessions()
        self.idle = IdleTimer.of(spec, self)
        self._events = EventPublisher(self.journal, self.store, self._sessions, self.idle)
        self._supervisor = Supervisor(
            spec.ranks,
            fork_server,
            logs,
            self._events.publish,
            on_lost=self._end_written_back,
            is_attended=self._sessions.has_notebook,
            unanswered=spec.idle_timeout,
            on_waiting=self.idle.on_work,
        )
        self._metrics = UsageMeter(spec.ranks)
        self._usage = UsageRecorder(self._metrics)
        self._peers = PeerAgents(folder, self._serve_peer)
        if spec.credentials:
            self._peers.set_credentials(spec.credentials)
        self._relay = BlobRelay(self.store, self._peers)
        self._blob_folder = BlobFolder(
            self.store, self._events.publish_forgotten, stale_files.claim, self._end_written_back
        )
        has_others = partial(self._sessions.has_notebook, least=2)
        self._installer = PackageInstaller(folder, self.store, has_others)
        variables = self._supervisor.variables
        self._shells = Shells(folder, spec, variables, fork_server_pid, self.idle.attend)
        self._ports = Ports()
        self._volumes = Volumes(folder, spec.socket, Path(spec.blobs))
        self._logs = Logs(self._supervisor.ranks, self._sessions)
        kept = (self._installer, self._shells, self._ports, self._volumes, self._logs)
        left, queue = LeftRuns(self._sessions, self._supervisor), RunQueue(self._events.publish)
        parts = (*kept, FormingTurns(self._sessions), left, queue)
        requests = RequestHandlers(
            spec=spec,
            supervisor=self._supervisor,
            store=self.store,
            relay=self._relay,
            peers=self._peers,
            events=self._events,
            idle=self.idle,
            metrics=self._metrics,
            others=dict(chain.from_iterable(each.handlers.items() for each in parts)),
            end=self.end,
        )
        self._rooms = requests.rooms
        self._requests = RequestCache(requests.handle)
        self._tasks = BackgroundTasks()
        self._ending: asyncio.Task[None] | None = None
        self._writing_back: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def serve(self, addr: str, ready: Callable[[int], None]) -> None:
        """Listen (to other agents at ``addr``), start the ranks, and serve until the end."""
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, self._leave)
        listener = listen(Path(self._spec.socket), self._on_connect)
        self._supervisor.start()
        ready(await self._peers.listen(addr) if self._spec.credentials else 0)
        self.idle.update()
        tending = (stale_files.keep(self._spec.keeps), self._tend_blobs(), self._end_if_left())
        for each in (self._report_usage(), self._record_usage(), *tending):
            self._tasks.spawn(each)
        for source in self._spec.notices:
            from jupyter_sky.node.agent import notices

            self._tasks.spawn(notices.watch(source, self._folder, self._on_notice))
        await self._ended.wait()
        await self._tasks.cancel(within=0.0)
        listener.close()
        self._peers.close()

    def end(self) -> asyncio.Task[None]:
        """End the node: first the ranks, which get some time, then everything else."""
        if not self._ending:
            self._blob_folder.give_up()
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    def _leave(self) -> None:
        """End as the system demands, as when it shuts down, or without what ranks need.

        Clients get no more events and find that the agent is gone. Otherwise the end of its ranks
        would look as if somebody had stopped their run, or as if they were all that is lost.
        """
        self.end()
        self._sessions.close()

    async def _end(self) -> None:
        await take_each(self._installer.end, self._ports.end)
        await asyncio.gather(take_each(self._shells.end), take_each(self._supervisor.end))
        rest = take_each(self._volumes.end, self._end_fork_server, self.store.remove)
        await asyncio.gather(rest, take_each(self._logs.end))
        shutil.rmtree(self._folder, ignore_errors=True)
        # The answer to the client that requested the end still has to be sent.
        asyncio.get_running_loop().call_later(0.05, self._ended.set)

    async def _end_fork_server(self) -> None:
        asyncio.get_running_loop().remove_reader(self._fork_server)
        self._fork_server.close()
        await end_in_time(self._fork_server_pid)

    # While it runs. There may be no file descriptor left for reading /proc, for a while.

    async def _report_usage(self) -> None:
        """During runs, report the resource usage of ranks to clients, outside the journal."""
        was_busy = True
        while True:
            await asyncio.sleep(REPORT_EVERY)
            if self._sessions and (self.is_busy or was_busy):
                with contextlib.suppress(OSError):
                    report = self._metrics.measure(self._supervisor.ranks.values())
                    self._sessions.send_report({"report": report})
            was_busy = self.is_busy

    async def _record_usage(self) -> None:
        """Record resource usage and send it; clients that connect later get the history."""
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(OSError):
                self._usage.sample(self._supervisor.ranks.values())
                self._sessions.send_history(self._usage.samples)

    async def _tend_blobs(self) -> None:
        """Free the shared memory of blobs whose sender does not go on, and of those out of use."""
        while True:
            await asyncio.sleep(EVERY)
            with contextlib.suppress(OSError):
                self._blob_folder.check(is_idle=not self.is_busy)
                self.store.drop_stalled()
                self._rooms.drop_left()
                await self._rooms.give_back(self.idle.times.idle)

    async def _end_if_left(self) -> None:
        """End once no notebook can come any more, or will."""
        why: list[str] = []
        while len(why) < _MISSED:
            await asyncio.sleep(LOOK_AROUND_EVERY)
            found = "" if self.is_used else await self._why_left()
            why = [*why, found] if found else []
        self._end_written_back(why[-1])

    async def _why_left(self) -> str:
        """Return why no notebook comes any more; an empty string if one may."""
        if stale_files.is_removed(self._folder):
            return "its folder was removed, without which no notebook finds it"
        if await self._peers.have_ended():
            # The notebook that ended them could not reach this one.
            return "no notebook is connected, and the other nodes of its cluster have ended"
        return ""

    def _on_notice(self, notice: Notice) -> None:
        """Tell clients, ranks and other agents that this node is about to be taken away."""
        event = Leaving(notice.kind, notice.at, list(self._supervisor.ranks))
        self._events.publish_leaving(event)
        self._supervisor.announce_leaving(event.message())
        self._volumes.begin_write_back(notice.until)
        self._tasks.spawn(self._peers.ask_all({**event.message(), "op": "leaving"}))

    async def _serve_peer(self, stream: PeerStream) -> None:
        """Answer another agent."""
        message, _ = await asyncio.wait_for(stream.receive(), HANDSHAKE_WITHIN)
        match message.get("op"):
            case "blob":
                await self._relay.receive(message, stream)
            case "idle_times":
                await stream.send(asdict(self.idle.times))
            case "leaving":
                # A node speaks only for its own ranks.
                own = self._peers.ranks_of(stream.peer)
                ranks = [rank for rank in message["ranks"] if rank in own]
                self._supervisor.announce_leaving({**message, "ranks": ranks})
                await stream.send({"op": "hello"})
            case op:
                if op == "ended":
                    await self._end_unless_used()
                await stream.send({"op": "hello"})

    async def _end_unless_used(self) -> None:
        """End because another node passes on that the notebook wants it.

        It does so because the notebook has no connection to this node. If a notebook is active
        here, the other node is not trusted, and gets no answer.
        """
        await asyncio.sleep(_HEARD_WITHIN)
        if self._sessions.hears_notebook(_HEARD_WITHIN):
            raise ConnectionError("a notebook is connected, which says itself what it wants")
        self._end_written_back("its notebook ended it, and another node passed that on")

    # For the idle timer (`idle.NodeUse`)

    @property
    def is_busy(self) -> bool:
        """Whether something runs on the node."""
        return self._supervisor.is_busy

    @property
    def is_working(self) -> bool:
        """Whether something runs on the node, and does not wait for its notebook."""
        return self._supervisor.is_working

    @property
    def is_used(self) -> bool:
        """Whether a notebook is connected; visitors do not count."""
        return self._sessions.has_notebook()

    def on_idle(self) -> None:
        """Write back what ranks have written, even if no notebook asks for it."""
        self._volumes.begin_write_back()

    async def ask_others(self) -> list[IdleTimes | None]:
        """Return how long other nodes have been idle; ``None`` for one that does not say."""
        answers = await self._peers.ask_all({"op": "idle_times"})
        return [IdleTimes.from_message(answer or {}) for answer in answers]

    async def write_back(self) -> str | None:
        """Write back what ranks have written, as `Volumes.write_back` does."""
        return await self._volumes.write_back()

    def end_because(self, reason: str) -> None:
        """End the node, unless it is ending, and publish why; without a reason, as one lost."""
        if reason and not self._ending:
            self._events.publish(Ending(reason).message())
        if reason:
            self.end()
        else:
            self._leave()

    def _end_written_back(self, reason: str = "") -> None:
        """Write back what ranks have written, and end the node: without a reason, as one lost."""
        if not self._volumes.are_there:
            self.end_because(reason)
        elif self._writing_back is None and not self._ending:
            self._writing_back = self._tasks.spawn(self._end_later(reason))

    async def _end_later(self, reason: str) -> None:
        try:
            left = await self._volumes.write_back()
            self.end_because(f"{reason}; {left}" if reason and left else reason)
        finally:  # whatever went wrong, it costs money
            self.end()

    # For clients (`client_session.SessionHost`)

    @property
    def cluster(self) -> str:
        """Name of the cluster."""
        return self._spec.cluster

    def welcome(self, session: ClientSession, missing: list[str]) -> Welcome:
        """Return what a client should know that has just connected."""
        return {
            "welcome": True,
            "missing": missing,
            "shared": self._sessions.hears_notebook(but=session),
            "version": jupyter_sky.__version__,
            "cluster": self._spec.cluster,
            "id": self._spec.id,
            "last": self.journal.last,
            "versions": self._supervisor.versions,
            "latest": self._events.latest_run,
            "ranks": [process.status() for process in self._supervisor.ranks.values()],
            "ending": self._ending is not None,
            "leaving": self._events.leaving,
        }

    def answer(self, token: str, message: Message) -> Answer:
        """Carry out a request, unless that was done before."""
        self._blob_folder.check()
        if message["op"] in ("run", "log", "open_port", "begin_forming", "end_forming"):
            message["client"] = token
        return self._requests.answer(token, message)

    def on_session_changed(self) -> None:
        """Update the idle timer, since it is now known whether the client is a notebook."""
        self.idle.update()
        self._blob_folder.check()  # it is told next which blobs are here

    def on_seen(self, number: int) -> None:
        """Remember which events a notebook has."""
        self._events.on_seen(number)

    def on_session_closed(self, session: ClientSession) -> None:
        """Forget a client that is gone."""
        self._sessions.discard(session)
        self._ports.on_closed(session.token, session.silent_for)
        self.idle.update()

    def _on_connect(self, sock: socket.socket) -> None:
        if len(self._sessions) >= MOST_CLIENTS:
            sock.close()
            return
        self._sessions.add(ClientSession(sock, self))
        self.idle.update()
