"""The agent: the process of ours that supervises a node, and outlives every link to it.

Clients come and go on a Unix socket; the agent keeps the journal of what happened, the blobs, and
the ranks. It never unpickles anything: values pass through it as bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import socket
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgpack

from jupyter_sky.node.client import Client
from jupyter_sky.node.gate import Gate, Shown
from jupyter_sky.node.journal import Journal
from jupyter_sky.node.logs import Log
from jupyter_sky.node.process import RankProcess
from jupyter_sky.node.store import Store, default_limit
from jupyter_sky.transport import blobs
from jupyter_sky.transport.events import (
    Event,
    Forgotten,
    Output,
    Prepared,
    RankExited,
    RankStarted,
)
from jupyter_sky.transport.frames import Message

BREAK_AFTER = 0.2
"""Seconds after an interrupt when a rank that still runs is taken to be inside a collective."""

PEERS_AFTER = 1.0
"""Seconds that the other ranks of a run get to end by themselves when one has failed."""

FIRST_GRACE = 30.0
"""Seconds that a new node waits for its first client, at least."""

END_WITHIN = 3.0
"""Seconds that ranks get for their last words when the cluster ends."""

_MOST_STILLBIRTHS = 3


class Agent:
    """The life of a node.

    Parameters
    ----------
    folder
        The node's folder, with ``spec.json``.
    spec
        What the provider wants here; see ``providers.machine.Spec``.
    zygote
        Socket to the zygote.
    zygote_pid
        Its process id.
    """

    def __init__(
        self, folder: Path, spec: dict[str, Any], zygote: socket.socket, zygote_pid: int
    ) -> None:
        self.spec = spec
        self._folder = folder
        self._zygote = zygote
        self._zygote_pid = zygote_pid
        self._ranks: dict[int, RankProcess] = {}
        self._stillbirths: dict[int, int] = {}
        self._journal = Journal(
            folder / "journal", lambda rank, *at: self._ranks[rank].log.read(*at)
        )
        self.store = Store(
            Path(spec["blobs"]), spec["blob_limit"] or default_limit(Path(spec["blobs"]))
        )
        self.clients: set[Client] = set()
        self._prepared: dict[str, str] | None = None
        self._addresses: list[str] = []
        self._reserved: asyncio.Future[int] | None = None
        self._together = False
        self._deadline = 0.0
        self._stopping: set[str] = set()
        self._grace: asyncio.TimerHandle | None = None
        self._seen_client = False
        self._ending: asyncio.Task[None] | None = None
        self._ended = asyncio.Event()

    async def serve(self, ready: Callable[[], None]) -> None:
        """Listen, start the ranks, and go on until the end."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
            loop.add_signal_handler(number, self.end)
        self._zygote.setblocking(False)
        loop.add_reader(self._zygote, self._hear_zygote)
        listener = self._listen()
        (self._folder / "logs").mkdir(mode=0o700, exist_ok=True)
        for place in self.spec["ranks"]:
            log = Log(self._folder / "logs" / f"rank{place['rank']}.log")
            self._ranks[place["rank"]] = RankProcess(
                place["rank"], log, self._hear_rank, self._on_output
            )
            self._start_rank(place)
        ready()
        self.watch_grace()
        await self._ended.wait()
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
            _, uid, _ = struct.unpack(
                "3i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            )
            if uid not in (os.getuid(), 0):
                sock.close()
                return
            self.clients.add(Client(sock, self, self._journal))
            self._seen_client = True

    def welcome(self) -> Message:
        """Return what a client that comes anew should know."""
        return {
            "cluster": self.spec["cluster"],
            "id": self.spec["id"],
            "last": self._journal.last,
            "versions": self._prepared,
            "ranks": [process.describe() for process in self._ranks.values()],
            "ending": self._ending is not None,
        }

    def watch_grace(self) -> None:
        """End in a while if nobody is there and nothing runs; called when either changed."""
        if self._grace:
            self._grace.cancel()
            self._grace = None
        busy = any(process.run for process in self._ranks.values())
        if not self.clients and not busy and not self._ending:
            loop = asyncio.get_running_loop()
            # Whoever started this node may need a moment to come to it.
            grace = (
                self.spec["grace"] if self._seen_client else max(self.spec["grace"], FIRST_GRACE)
            )
            self._grace = loop.call_later(grace, self.end)

    def _publish(self, event: Event, logged: tuple[int, int] | None = None) -> None:
        self._append(event.message(), logged)

    def _append(self, message: Message, logged: tuple[int, int] | None = None) -> None:
        self._journal.append(message, logged)
        for client in self.clients:
            client.pump()

    # What a client asks for

    async def request(self, message: Message) -> Message:
        """Do what a client asks for and return the answer."""
        handler = getattr(self, f"_on_{message['op']}", None)
        if handler is None:
            return {"error": f"this agent does not know {message['op']!r}"}
        return await handler(message)

    async def _on_run(self, message: Message) -> Message:
        ranks = [self._ranks[rank] for rank in message["ranks"] if rank in self._ranks]
        wanted = _blobs_in(message)
        if missing := [key for key in wanted if key not in self.store]:
            return {"missing": missing}
        if gone := [process.rank for process in ranks if process.pid is None]:
            return {"error": f"rank {gone[0]} is not there"}
        self.store.use(wanted)
        self._trim(wanted)
        for process in ranks:
            groups = process.take(message["names"])
            process.run = message["run"]
            process.shown = process.rank in message["show"]
            process.gates = {"stdout": Gate(), "stderr": Gate()} if process.shown else {}
            process.send(
                {**message, "names": groups, "values": message["values"].get(process.rank, [])}
            )
        self._together = message["together"]
        self._deadline = message["deadline"]
        self.watch_grace()
        return {}

    async def _on_reserve(self, message: Message) -> Message:
        self._reserved = asyncio.get_running_loop().create_future()
        self._ranks[message["rank"]].send(message)
        return {"port": await self._reserved}

    async def _on_form(self, message: Message) -> Message:
        nodes = message["topology"]["nodes"]
        elsewhere = [node for node in nodes if not self._ranks.keys() & set(node["ranks"])]
        self._addresses = sorted({node["addr"] for node in elsewhere})
        for process in self._ranks.values():
            process.send({**message, "names": process.take(message["names"])})
        return {}

    async def _on_interrupt(self, message: Message) -> Message:
        self._stop(message["run"], message["deadline"])
        return {}

    async def _on_kill(self, message: Message) -> Message:
        for rank in message["ranks"]:
            if rank in self._ranks:
                self._ranks[rank].signal(signal.SIGKILL)
        return {}

    async def _on_log(self, message: Message) -> Message:
        process = self._ranks.get(message["rank"])
        if process is None:
            return {"error": f"there is no rank {message['rank']} here"}
        process.drain()
        if message.get("tail") is not None:
            return {"data": process.log.tail(message["tail"]), "size": process.log.size}
        data = process.log.read(message["offset"], message["limit"])
        return {"data": data, "size": process.log.size}

    async def _on_end(self, message: Message) -> Message:
        await asyncio.shield(self.end())
        return {}

    def _trim(self, wanted: frozenset[str]) -> None:
        if dropped := self.store.trim(wanted):
            self._publish(Forgotten(dropped))

    # Ranks

    def _start_rank(self, place: dict[str, Any]) -> None:
        process = self._ranks[place["rank"]]
        with process.descriptors() as fds:
            socket.send_fds(
                self._zygote, [msgpack.packb({"rank": place["rank"], "env": place["env"]})], fds
            )

    def _hear_zygote(self) -> None:
        while True:
            try:
                data = self._zygote.recv(64 * 1024)
            except (BlockingIOError, InterruptedError):
                return
            except OSError:
                data = b""
            if not data:
                self._lose_zygote()
                return
            message = msgpack.unpackb(data)
            if "forked" in message:
                process = self._ranks[message["forked"]]
                process.pid = message["pid"]
                self._publish(RankStarted(process.rank, message["pid"]))
            elif "exited" in message:
                self._lose_rank(message["exited"], message["status"])
            elif "prepared" in message:
                self._prepared = message["prepared"]
                self._publish(Prepared(message["prepared"], message["missing"]))

    def _lose_zygote(self) -> None:
        # Its ranks ended with it. There is nothing to go on with: what it had imported is gone.
        asyncio.get_running_loop().remove_reader(self._zygote)
        for process in list(self._ranks.values()):
            if process.pid:
                process.signal(signal.SIGKILL)
                self._forget_rank(process, "its node's zygote ended", again=False)
        self.end()

    def _lose_rank(self, pid: int, status: int) -> None:
        process = next((p for p in self._ranks.values() if p.pid == pid), None)
        if process is None:
            return
        if self._ending:
            process.close()
            return
        # A rank that ends again and again before it has done anything will not get better.
        births = self._stillbirths.get(process.rank, 0) + 1 if process.run is None else 0
        self._stillbirths[process.rank] = births
        again = births < _MOST_STILLBIRTHS
        self._forget_rank(process, _reason(status), again)
        if again:
            self._start_rank(next(p for p in self.spec["ranks"] if p["rank"] == process.rank))

    def _forget_rank(self, process: RankProcess, reason: str, again: bool) -> None:
        pid, run = process.pid, process.run
        process.drain()
        self._show_rest(process)
        process.close()
        if process.rank == 0 and self._reserved and not self._reserved.done():
            self._reserved.set_exception(ValueError(f"rank 0 is lost, {reason}"))
        tail = process.log.tail(5, limit=2000).decode(errors="replace")
        self._publish(RankExited(process.rank, pid or 0, reason, run, tail, again))
        if run and self._together:
            self._stop(run, self._deadline)
        self.watch_grace()

    def _hear_rank(self, process: RankProcess, message: Message) -> None:
        if "reserved" in message:
            if self._reserved and not self._reserved.done():
                self._reserved.set_result(message["reserved"])
            return
        if message["event"] == "rank_done":
            self._show_rest(process)
            process.run = None
            self._stillbirths.pop(process.rank, None)
            if message["outcome"] == "error" and self._together:
                loop = asyncio.get_running_loop()
                loop.call_later(PEERS_AFTER, self._stop, message["run"], self._deadline)
            self._adopt(message["values"])
            self.watch_grace()
        elif message["event"] == "formed" and message["error"] is None:
            process.generation = message["generation"]
        elif message["event"] == "display":
            process.send({"op": "displayed", "number": message.pop("number")})
            if not process.shown:
                text = message["data"].get("text/plain", "")
                process.log.append(f"{text}\n".encode())
                return
        self._append(message)

    def _adopt(self, values: Message | None) -> None:
        if values:
            for key, size in blobs.references(values):
                self.store.adopt(key, size)
            self._trim(frozenset(key for key, _ in blobs.references(values)))

    def _on_output(self, process: RankProcess, stream: str, data: bytes, offset: int) -> None:
        gate = process.gates.get(stream)
        if not process.run or gate is None:
            return
        held = gate.holds
        self._show(process, stream, gate.take(data, offset))
        if gate.holds and not held:
            loop = asyncio.get_running_loop()
            loop.call_later(gate.delay, self._release, process, stream, gate)

    def _release(self, process: RankProcess, stream: str, gate: Gate) -> None:
        if process.gates.get(stream) is gate:
            self._show(process, stream, gate.release())

    def _show(self, process: RankProcess, stream: str, shown: Shown | None) -> None:
        if shown:
            skipped = (shown.skipped_lines, shown.skipped_bytes)
            event = Output(process.rank, process.run, stream, shown.data, *skipped)
            self._publish(event, logged=(shown.offset, len(shown.data)))

    def _show_rest(self, process: RankProcess) -> None:
        """Show what is held back of a run that is over."""
        for stream, gate in process.gates.items():
            self._show(process, stream, gate.release())
        process.gates = {}

    # Stop

    def _running(self, run: str) -> list[RankProcess]:
        return [process for process in self._ranks.values() if process.run == run]

    def _stop(self, run: str, deadline: float) -> None:
        """Interrupt a run: first politely, then out of a collective, in the end by force."""
        processes = self._running(run)
        if not processes or run in self._stopping:
            return
        self._stopping.add(run)
        for process in processes:
            process.signal(signal.SIGINT)
        loop = asyncio.get_running_loop()
        loop.call_later(BREAK_AFTER, self._break, run)
        loop.call_later(deadline, self._kill, run)

    def _break(self, run: str) -> None:
        siblings = [process.pid for process in self._ranks.values() if process.pid]
        for process in self._running(run):
            process.break_collective(
                [pid for pid in siblings if pid != process.pid], self._addresses
            )
            # Once more, for a rank that had not come to the run when the first one reached it.
            process.signal(signal.SIGINT)

    def _kill(self, run: str) -> None:
        self._stopping.discard(run)
        for process in self._running(run):
            process.signal(signal.SIGKILL)

    # The end

    def end(self) -> asyncio.Task[None]:
        """End the node: ranks first, with time for their last words, then everything else."""
        if not self._ending:
            self._ending = asyncio.get_running_loop().create_task(self._end())
        return self._ending

    async def _end(self) -> None:
        for process in self._ranks.values():
            if process.run:
                process.signal(signal.SIGINT)
            process.send({"op": "end"})
        deadline = time.monotonic() + END_WITHIN
        while any(p.pid for p in self._ranks.values()) and time.monotonic() < deadline:
            await asyncio.sleep(0.005)
        self._zygote.close()
        await asyncio.get_running_loop().run_in_executor(None, _reap, self._zygote_pid)
        self.store.remove()
        shutil.rmtree(self._folder, ignore_errors=True)
        # The answer to whoever asked for the end still has to leave.
        asyncio.get_running_loop().call_later(0.05, self._ended.set)


def _blobs_in(message: Message) -> frozenset[str]:
    values = [group["packed"] for group in message["names"]]
    if message["call"]:
        values.append(message["call"])
    return frozenset(key for value in values for key, _ in blobs.references(value))


def _reason(status: int) -> str:
    if status < 0:
        with contextlib.suppress(ValueError):
            return f"it was killed by {signal.Signals(-status).name}"
        return f"it was killed by signal {-status}"
    return f"its process ended with status {status}"


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, 0)


def main(folder: Path, zygote: socket.socket, zygote_pid: int, ready: Callable[[], None]) -> None:
    """Run the agent of ``folder`` until it ends."""
    spec = json.loads((folder / "spec.json").read_text())

    async def serve() -> None:
        await Agent(folder, spec, zygote, zygote_pid).serve(ready)

    asyncio.run(serve())
