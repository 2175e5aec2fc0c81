"""A node in other hands: what stands between kernels and its agent says what the test wants."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import msgpack

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.transport.frames import Decoder, Message, encode
from tests.waiting import PATIENCE

Change = Callable[[Message], Message]


def agent_folder(cluster: Cluster, node: int) -> Path:
    """Return the folder of the agent of a node on this computer."""
    machines = [each.machine for each in cluster._controller.connections]
    found = next(each for each in machines if node in [one.node for one in each.nodes])
    assert isinstance(found, LocalMachine)
    return found.folder


def single_end(message: Message) -> Message:
    """Return a message that one rank is done as the event of that rank; others as they are."""
    if message.get("event") != "ranks_done":
        return message
    [rank], [seconds] = message["ranks"], message["seconds"]
    common = msgpack.unpackb(message["common"])
    end = {"event": "rank_done", "rank": rank, "outcome": "ok", "seconds": seconds, **common}
    return {**end, "run": message["run"], "n": message["n"]}


class TakenOver:
    """Stands at the socket of an agent, and passes on what goes over it.

    Attributes
    ----------
    change
        Is given each message of the agent, and returns what the client receives in its place.
    clients
        Who has connected so far.
    """

    def __init__(self, folder: Path) -> None:
        self.change: Change = lambda message: message
        self._agent = folder / "agent.real"
        self._path = folder / "agent.sock"
        self._path.rename(self._agent)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(self._path))
        self._listener.listen()
        self._sending = threading.Lock()
        self.clients: list[socket.socket] = []
        self._agents: list[socket.socket] = []
        self._follower = self._listener
        self._is_followed = threading.Event()
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()
        self._last: dict[socket.socket, int] = {}  # number of the last event that each was sent
        self._added = 0

    def say(self, event: dict[str, Any]) -> None:
        """Send the client that follows events one which the agent knows nothing of.

        Its question for events has come through by then: the added ones are after those.
        """
        assert self._is_followed.wait(PATIENCE)
        with self._sending:
            self._added += 1
            self._last[self._follower] += 1
            self._follower.sendall(encode({**event, "n": self._last[self._follower]}))

    def say_raw(self, data: bytes) -> None:
        """Send it bytes that may be no message at all."""
        assert self._is_followed.wait(PATIENCE)
        with self._sending:
            self._follower.sendall(data)

    def close(self) -> None:
        """Give the agent its socket back, if it is there still."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in [*self.clients, *self._agents]:
            with suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        with suppress(OSError):
            self._agent.rename(self._path)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            agent = socket.socket(socket.AF_UNIX)
            agent.connect(str(self._agent))
            self.clients.append(client)
            self._agents.append(agent)
            for target, way in ((self._ask, (client, agent)), (self._answer, (agent, client))):
                self._threads.append(threading.Thread(target=target, args=way))
                self._threads[-1].start()

    def _ask(self, client: socket.socket, agent: socket.socket) -> None:
        decoder = Decoder()
        with suppress(OSError):
            while count := client.recv_into(decoder.buffer()):
                for message, payload in decoder.received(count):
                    # The agent knows nothing of the events that were added.
                    if isinstance(message.get("since"), int):
                        # Others only look how the node is, as the list of clusters does.
                        with self._sending:
                            self._follower = client
                            message["since"] -= self._added
                        self._is_followed.set()
                    agent.sendall(encode(message, payload.nbytes))
                    agent.sendall(payload)
        _end(client, agent)

    def _answer(self, agent: socket.socket, client: socket.socket) -> None:
        decoder = Decoder()
        with suppress(OSError):
            while count := agent.recv_into(decoder.buffer()):
                for message, payload in decoder.received(count):
                    changed = self.change(message)
                    with self._sending:
                        if "event" in changed:
                            changed = {**changed, "n": changed["n"] + self._added}
                            self._last[client] = changed["n"]
                        elif "welcome" in changed and isinstance(changed["last"], int):
                            self._last[client] = changed["last"] + self._added
                            changed = {**changed, "last": self._last[client]}
                        client.sendall(encode(changed, payload.nbytes))
                        client.sendall(payload)
        _end(client, agent)


def _end(*sockets: socket.socket) -> None:
    for sock in sockets:
        with suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)


@contextmanager
def taken_over(cluster: Cluster, node: int) -> Iterator[TakenOver]:
    """Take a node over; kernels that connect from now on speak with the one who did."""
    made = TakenOver(agent_folder(cluster, node))
    try:
        yield made
    finally:
        made.close()
