"""The agent: the process of ours that supervises a node, and outlives every link to it.

Clients come and go on a Unix socket; the agent keeps the journal of what happened, the blobs, and
the ranks. It never unpickles anything: values pass through it as bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jupyter_sky
from jupyter_sky.node.agent.client_session import Client, RequestCache
from jupyter_sky.node.agent.idle import Idle, Quiet
from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.node.agent.metrics import Metrics
from jupyter_sky.node.agent.requests import Changes, devices_of
from jupyter_sky.node.blobs.relay import Relay
from jupyter_sky.node.blobs.store import Store, default_disk, default_limit
from jupyter_sky.node.network import port_check
from jupyter_sky.node.network.peers import Peers, Stream
from jupyter_sky.node.supervisor.supervisor import END_WITHIN, Supervisor
from jupyter_sky.serialization import blobs
from jupyter_sky.transport.events import Ending, Forgotten, Leaving, RunBegan
from jupyter_sky.transport.frames import Message
from jupyter_sky.transport.messages import Packed

if TYPE_CHECKING:
    from jupyter_sky.node.agent.spot_notices import Notice

REPORT_EVERY = 0.5
"""Seconds between two reports of what ranks use, while something runs."""

KEEP_EVERY = 3600.0
"""Seconds after which what the node uses is marked as used again."""


class Agent:
    """The life of a node.

    Parameters
    ----------
    folder
        The node's folder, with ``spec.json``.
    spec
        What the provider wants here, from ``spec.json``.
    fork_server
        Socket to the fork server.
    fork_server_pid
        Its process id.
    """

    def __init__(
        self, folder: Path, spec: dict[str, Any], fork_server: socket.socket, fork_server_pid: int
    ) -> None:
        self.spec = spec
        self._folder = folder
        self._fork_server = fork_server
        self._fork_server_pid = fork_server_pid
        self.supervisor = Supervisor(
            spec["ranks"], fork_server, folder / "logs", self._publish, self.end
        )
        self._journal = Journal(folder / "journal", self._read_log)
        blob_folder = Path(spec["blobs"])
        self.store = Store(
            blob_folder,
            spec["blob_limit"] or default_limit(blob_folder),
            default_disk(blob_folder, folder / "spilled"),
            default_limit(folder),
        )
        self._relay = Relay(self.store)
        self.peers: Peers | None = None
        if spec["credentials"]:
            self.meet(spec["credentials"])
        self.clients: set[Client] = set()
        self.callers = RequestCache(self)
        self._requests: dict[str, Callable[[Message], Message | Awaitable[Message]]] = {
            "run": self._on_run,
            "reserve": self._on_reserve,
            "form": self._on_form,
            "interrupt": self._on_interrupt,
            "kill": self._on_kill,
            "log": self._on_log,
            "arrived": self._on_arrived,
            "pass_on": self._on_pass_on,
            "reach": self._on_reach,
            "open_door": self._on_open_door,
            "try_doors": self._on_try_doors,
            "end": self._on_end,
            **Changes(self).requests,
        }
        self.devices = devices_of(spec["ranks"])
        self._latest: Message | None = None
        self._leaving: Message | None = None
        self._others: list[dict[str, Any]] = []
        self.idle = Idle(
            spec["grace"],
            spec["idle_timeout"],
            lambda: self.supervisor.busy,
            lambda: self.in_use,
            self._ask_others,
            self._end_because,
        )
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def serve(self, addr: str, ready: Callable[[int], None]) -> None:
        """Listen, to other agents at ``addr``, start the ranks, and go on until the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        listener = self._listen()
        self.supervisor.start()
        ready(await self.peers.listen(addr) if self.peers else 0)
        self.idle.look()
        tasks = [loop.create_task(self._report()), loop.create_task(self._keep())]
        if self.spec.get("spot"):
            from jupyter_sky.node.agent import spot_notices

            tasks.append(loop.create_task(spot_notices.watch(self._warn)))
        await self._ended.wait()
        for task in tasks:
            task.cancel()
        listener.close()

    # Clients

    def _listen(self) -> socket.socket:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(self.spec["socket"])
        Path(self.spec["socket"]).chmod(0o600)
        listener.listen()
        listener.setblocking(False)
        asyncio.get_running_loop().add_reader(listener, self._accept, listener)
        return listener

    def _accept(self, listener: socket.socket) -> None:
        with contextlib.suppress(BlockingIOError):
            sock, _ = listener.accept()
            if _user_of(sock) not in (os.getuid(), 0):
                sock.close()
                return
            self.clients.add(Client(sock, self, self._journal))
            self.idle.look()

    @property
    def in_use(self) -> bool:
        """Whether a notebook is connected; who only visits keeps nothing up."""
        return self.used_beside(None)

    def used_beside(self, client: Client | None) -> bool:
        """Return whether a notebook is connected, beside this client."""
        return any(each.uses for each in self.clients if each is not client)

    def welcome(self) -> Message:
        """Return what a client that comes anew should know."""
        return {
            "version": jupyter_sky.__version__,
            "cluster": self.spec["cluster"],
            "id": self.spec["id"],
            "last": self._journal.last,
            "versions": self.supervisor.prepared,
            "latest": self._latest,
            "ranks": [process.describe() for process in self.supervisor.ranks.values()],
            "ending": self._ending is not None,
            "leaving": self._leaving,
        }

    def seen(self, since: int) -> None:
        """Note that somebody follows the journal from number ``since`` on."""
        if self._latest and since <= self._latest["n"]:
            self._latest["unseen"] = False

    # What happens

    def _publish(self, message: Message, logged: tuple[int, int] | None = None) -> None:
        if message["event"] == "rank_done" and message["values"]:
            self._adopt(message["values"])
        if self._latest and message.get("run") == self._latest["run"] and not self.in_use:
            self._latest["unseen"] = True
        self._journal.append(message, logged)
        for client in self.clients:
            client.pump()
        if message["event"] in ("rank_done", "rank_exited"):
            self.idle.look()

    def _adopt(self, values: Packed) -> None:
        """Take over the blobs that a rank has written for its values."""
        for key, size in blobs.references(values):
            self.store.adopt(key, size)
        self._trim(frozenset(key for key, _ in blobs.references(values)))

    def _trim(self, wanted: frozenset[str]) -> None:
        if dropped := self.store.trim(wanted):
            self._publish(Forgotten(dropped).message())

    def _read_log(self, rank: int, offset: int, size: int) -> bytes:
        return self.supervisor.logs[rank].read(offset, size)

    async def _report(self) -> None:
        """Tell clients, while something runs, what it takes; this is not worth a journal."""
        metrics = Metrics(self.devices)
        quiet = False
        while True:
            await asyncio.sleep(REPORT_EVERY)
            busy = self.supervisor.busy
            if self.clients and (busy or not quiet):
                report = metrics.measure(self.supervisor.ranks.values())
                for client in self.clients:
                    client.tell({"report": report})
            quiet = not busy

    async def _keep(self) -> None:
        """Mark folders as used: machines that share a home do not see each other's processes."""
        while True:
            for folder in self.spec.get("keeps", ()):
                with contextlib.suppress(OSError):
                    os.utime(folder)
            await asyncio.sleep(KEEP_EVERY)

    def _warn(self, notice: Notice) -> None:
        """Have everybody know that this node is about to be taken away."""
        self._leaving = Leaving(notice.kind, notice.at, list(self.supervisor.ranks)).message()
        self._publish(self._leaving)
        self.supervisor.warn(self._leaving)
        self._telling = asyncio.get_running_loop().create_task(
            self._tell_others({**self._leaving, "op": "leaving"})
        )

    # What a client asks for

    def request(self, message: Message) -> Message | Awaitable[Message]:
        """Do what a client asks for and return the answer, or what becomes the answer."""
        handler = self._requests.get(message["op"])
        if handler is None:
            return {"error": f"this agent does not know {message['op']!r}"}
        return handler(message)

    def _on_run(self, message: Message) -> Message:
        wanted = _blobs_in(message)
        if missing := [key for key in wanted if key not in self.store]:
            return {"missing": missing}
        self.store.use(wanted)
        self._trim(wanted)
        trouble = self.supervisor.run(message)
        self.idle.look()
        if trouble:
            return {"error": trouble}
        show, asked = message["show"], message["values"]
        began = RunBegan(message["run"], message["everyone"], message["title"], show, asked)
        self._publish(began.message())
        self._latest = {"n": self._journal.last, "unseen": False, **began.message()}
        return {}

    async def _on_reserve(self, message: Message) -> Message:
        return {"port": await self.supervisor.reserve(message)}

    def _on_form(self, message: Message) -> Message:
        nodes = message["topology"]["nodes"]
        elsewhere = [
            node for node in nodes if not self.supervisor.ranks.keys() & set(node["ranks"])
        ]
        # A machine can stand for several nodes; its agent is asked once.
        self._others = [*{(node["addr"], node["port"]): node for node in elsewhere}.values()]
        self.supervisor.form(message)
        self.idle.begin()
        return {}

    def _on_interrupt(self, message: Message) -> Message:
        self.supervisor.stop(message["run"], message["deadline"])
        return {}

    def _on_kill(self, message: Message) -> Message:
        self.supervisor.kill(message["ranks"])
        return {}

    def _on_log(self, message: Message) -> Message:
        process = self.supervisor.ranks.get(message["rank"])
        if process is None:
            return {"error": f"there is no rank {message['rank']} here"}
        process.drain()
        if message["tail"] is not None:
            return {"data": process.log.tail(message["tail"]), "size": process.log.size}
        data = process.log.read(message["offset"], message["limit"])
        return {"data": data, "size": process.log.size}

    def _on_arrived(self, message: Message) -> Message:
        return {"size": self.store.arrived(message["blob"])}

    async def _on_pass_on(self, message: Message) -> Message:
        key, size = message["blob"], message["size"]
        return {"failed": await self._relay.pass_on(key, size, message["to"])}

    async def _on_reach(self, message: Message) -> Message:
        assert self.peers is not None
        return {"failed": await self.peers.reach(message["peers"])}

    async def _on_open_door(self, message: Message) -> Message:
        return {"port": port_check.open_door(message["addr"], message["callers"])}

    async def _on_try_doors(self, message: Message) -> Message:
        doors = {node: (addr, port) for node, addr, port in message["doors"]}
        return {"failed": await asyncio.to_thread(port_check.try_doors, doors)}

    async def _on_end(self, message: Message) -> Message:
        await asyncio.shield(self.end())
        return {}

    # Other agents

    def meet(self, credentials: dict[str, str]) -> Peers:
        """Make a door for other agents."""
        self.peers = self._relay.peers = Peers(self._folder, credentials, self._serve_peer)
        return self.peers

    async def _serve_peer(self, stream: Stream) -> None:
        message, _ = await stream.receive()
        match message.get("op"):
            case "take":
                await self._relay.take(message, stream)
            case "quiet":
                await stream.send(asdict(self.idle.quiet))
            case "leaving":
                self.supervisor.warn(message)
                await stream.send({"op": "hello"})
            case _:
                await stream.send({"op": "hello"})

    async def _ask_others(self) -> list[Quiet]:
        return [Quiet(**answer) for answer in await self._tell_others({"op": "quiet"})]

    async def _tell_others(self, message: Message) -> list[Message]:
        """Say something to all other agents, and return what those answer that can be reached."""
        if not self.peers:
            return []
        said = await asyncio.gather(*(self.peers.ask(node, message) for node in self._others))
        return [answer for answer in said if answer]

    # The end

    def _end_because(self, reason: str) -> None:
        self._publish(Ending(reason).message())
        self.end()

    def end(self) -> asyncio.Task[None]:
        """End the node: ranks first, with time for their last words, then everything else."""
        if not self._ending:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        self.supervisor.dismiss()
        deadline = time.monotonic() + END_WITHIN
        while any(p.pid for p in self.supervisor.ranks.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self._fork_server.close()
        await asyncio.get_running_loop().run_in_executor(None, _reap, self._fork_server_pid)
        self.store.remove()
        shutil.rmtree(self._folder, ignore_errors=True)
        # The answer to whoever asked for the end still has to leave.
        asyncio.get_running_loop().call_later(0.05, self._ended.set)


def _user_of(sock: socket.socket) -> int:
    """Return the user at the other end of a Unix socket."""
    credentials = struct.Struct("3i")
    packed = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, credentials.size)
    return int(credentials.unpack(packed)[1])


def _blobs_in(message: Message) -> frozenset[str]:
    values = [group["packed"] for group in message["names"]]
    if message["call"]:
        values.append(message["call"])
    return frozenset(key for value in values for key, _ in blobs.references(value))


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def main(
    folder: Path,
    spec: dict[str, Any],
    addr: str,
    fork_server: socket.socket,
    fork_server_pid: int,
    ready: Callable[[int], None],
) -> None:
    """Run the agent of ``folder`` until it ends; ``ready`` is told its port for other agents."""

    async def serve() -> None:
        await Agent(folder, spec, fork_server, fork_server_pid).serve(addr, ready)

    asyncio.run(serve())
