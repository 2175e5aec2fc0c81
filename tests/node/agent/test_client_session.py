"""Clients of an agent: what one of them does, or what goes wrong with it, is its own affair."""

from __future__ import annotations

import asyncio
import socket
from pathlib import Path

import msgpack
import pytest

import jupyter_sky
from jupyter_sky.node.agent.client_session import ClientSession, ClientSessions
from jupyter_sky.node.agent.events import event_feed
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.transport.frames import Decoder, Message, encode


class Host:
    """An agent without ranks; rank 0's log cannot be read."""

    def __init__(self, folder: Path) -> None:
        self.journal = Journal(folder, {}.__getitem__)  # type: ignore[arg-type]
        self.sessions = ClientSessions()
        self.closed: list[ClientSession] = []

    def welcome(self, session: ClientSession, missing: list[str]) -> dict[str, bool]:
        shared = self.sessions.hears_notebook(but=session)
        return {"welcome": True, "shared": shared, "ending": False}

    def on_session_changed(self) -> None:
        pass

    def greet(self) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.sessions.add(ClientSession(ours, self))  # type: ignore[arg-type]
        hello = {"op": "hello", "token": "", "blobs": [], "since": None}
        theirs.sendall(encode({**hello, "version": jupyter_sky.__version__}))
        return theirs

    def connect(self, since: int) -> socket.socket:
        ours, theirs = socket.socketpair()
        self.sessions.add(ClientSession(ours, self))  # type: ignore[arg-type]
        theirs.sendall(encode({"op": "follow", "since": since}))
        theirs.settimeout(10)
        return theirs

    def on_session_closed(self, session: ClientSession) -> None:
        self.sessions.discard(session)
        self.closed.append(session)


def test_a_report_is_no_matter_of_a_client_that_is_closed_by_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        clients = [host.connect(since=0) for _ in range(3)]
        while any(each.feed._cursor is None for each in host.sessions._sessions):
            await asyncio.sleep(0)
        host.journal.append({"event": "output", "rank": 0, "data": b"x"}, logged=(0, 1))
        for n in range(600):  # more than are kept in memory
            host.journal.append({"event": "formed", "rank": n})
        # It is sent with the events before it, which cannot be read: so the connections end.
        host.sessions.send_report({"report": []})
        assert len(host.closed) == len(clients)
        for sock in clients:
            sock.close()

    asyncio.run(scenario())


def test_an_error_with_one_client_costs_that_one_its_connection_alone(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        host.journal.append({"event": "output", "rank": 0, "data": b"x"}, logged=(0, 1))
        for n in range(600):  # more than are kept in memory
            host.journal.append({"event": "formed", "rank": n})
        late, early = host.connect(since=host.journal.last), host.connect(since=0)
        while not host.closed:
            await asyncio.sleep(0)
        host.journal.append({"event": "formed", "rank": 600})
        host.sessions.pump()  # raises nothing: this is called for a rank's message
        assert b"formed" in late.recv(1000)
        assert early.recv(1000) == b""
        for sock in (late, early):
            sock.close()

    asyncio.run(scenario())


def test_a_notebook_that_is_silent_is_not_taken_to_be_there(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        with host.greet() as notebook:
            while not host.sessions.has_notebook():
                await asyncio.sleep(0)
            assert host.sessions.hears_notebook(within=600)
            while host.sessions.hears_notebook(within=0.05):
                await asyncio.sleep(0.01)
            assert host.sessions.has_notebook()
            while not host.sessions.hears_notebook(within=0.05):
                notebook.sendall(encode({}))
                await asyncio.sleep(0)

    asyncio.run(scenario())


def received(sock: socket.socket) -> list[Message]:
    """Return the messages that one read of a socket gives."""
    decoder = Decoder()
    count = sock.recv_into(decoder.buffer())
    return [message for message, _ in decoder.received(count) if message]


async def until_read(host: Host) -> None:
    """Wait until the agent has read what clients have sent."""
    for _ in range(10):
        await asyncio.sleep(0)


@pytest.fixture
def held_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that is held leaves by itself while a busy machine makes the test wait."""
    monkeypatch.setattr(event_feed, "HELD_FOR", 60.0)
    monkeypatch.setattr(event_feed, "TAKEN_WITHIN", 60.0)


@pytest.mark.usefixtures("held_long")
def test_what_is_not_urgent_goes_with_what_follows_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        client = host.connect(since=0)
        await until_read(host)
        client.setblocking(False)
        for n in range(3):
            host.journal.append({"event": "rank_done", "rank": n})
            host.sessions.pump(is_urgent=False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        host.journal.append({"event": "rank_exited", "rank": 3})
        host.sessions.pump()
        assert [message["n"] for message in received(client)] == [1, 2, 3, 4]
        client.close()

    asyncio.run(scenario())


def test_what_is_not_urgent_goes_a_moment_later_by_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        client = host.connect(since=0)
        await until_read(host)
        host.journal.append({"event": "rank_done", "rank": 0})
        host.sessions.pump(is_urgent=False)
        assert [message["n"] for message in await asyncio.to_thread(received, client)] == [1]
        client.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("held_long")
def test_an_answer_stays_behind_the_events_that_were_there_before_it(tmp_path: Path) -> None:
    class Busy(Host):
        """An agent that publishes an event for each request."""

        def answer(self, token: str, message: Message) -> Message:
            self.journal.append({"event": "run_began", "run": message["run"]})
            self.sessions.pump(is_urgent=False)
            return {}

    async def scenario() -> None:
        host = Busy(tmp_path)
        client = host.greet()
        client.sendall(encode({"op": "follow", "since": 0}))
        await until_read(host)
        welcome = received(client)
        assert [*welcome[0]] == ["welcome", "shared", "ending"]
        for n in (1, 2):
            asked = {"op": "run", "id": n, "run": str(n)}
            client.sendall(encode(asked))
            await until_read(host)
        client.setblocking(False)
        with pytest.raises(BlockingIOError):
            client.recv(1)
        host.journal.append({"event": "rank_done", "rank": 0})
        host.sessions.pump()
        said = [message.get("n") or -message["re"] for message in received(client)]
        assert said == [1, -1, 2, -2, 3]
        client.close()

    asyncio.run(scenario())


def test_who_reads_slowly_has_answers_early_and_catches_up_behind_the_events(
    tmp_path: Path,
) -> None:
    class Slow(Host):
        """An agent whose answers come while there is more than the client accepts."""

        def answer(self, token: str, message: Message) -> Message:
            for rank in range(200):
                self.journal.append({"event": "formed", "rank": rank, "data": bytes(100_000)})
            return {"caught_up": True} if message["op"] == "catch_up" else {}

    async def scenario() -> None:
        host = Slow(tmp_path)
        client = await followed(host)
        for number, op in enumerate(["catch_up", "added"], start=1):
            client.sendall(encode({"op": op, "id": number}))
        await until_read(host)
        decoder, said = Decoder(), list[int]()
        client.settimeout(10)
        while -1 not in said or 400 not in said:
            count = await asyncio.to_thread(client.recv_into, decoder.buffer())
            got = [message for message, _ in decoder.received(count) if message]
            said += [message.get("n") or -message["re"] for message in got]
        assert said.index(-1) > said.index(200)
        assert said.index(-2) < said.index(400)
        client.close()

    asyncio.run(scenario())


def test_an_answer_stays_behind_its_events_also_where_processors_are_busy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Asked(Host):
        """An agent that publishes some events for each request."""

        def answer(self, token: str, message: Message) -> Message:
            for rank in range(5):
                self.journal.append({"event": "formed", "rank": rank})
            return {}

    monkeypatch.setattr(event_feed, "_TURN", 0.0)

    async def scenario() -> None:
        host = Asked(tmp_path)
        client = await followed(host)
        client.sendall(encode({"op": "added", "id": 1}))
        await until_read(host)
        said = [message.get("n") or -message["re"] for message in received(client)]
        assert said == [1, 2, 3, 4, 5, -1]
        client.close()

    asyncio.run(scenario())


def test_who_was_away_for_long_does_not_keep_others_waiting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Willing(Host):
        """An agent that carries out what it is asked at once."""

        def answer(self, token: str, message: Message) -> Message:
            return {"done": True}

    monkeypatch.setattr(event_feed, "_TURN", 0.0, raising=False)

    async def scenario() -> None:
        host = Willing(tmp_path)
        other = await followed(host)
        host.journal._read_log = lambda rank, offset, size: b""  # it does not have that any more
        for n in range(3000):
            host.journal.append({"event": "output", "rank": 0, "data": b"x"}, logged=(n, 1))
        away = host.connect(since=0)
        other.sendall(encode({"op": "follow", "since": host.journal.last}))
        other.sendall(encode({"op": "added", "id": 1}))
        other.settimeout(10)
        while {"re": 1, "done": True} not in await asyncio.to_thread(received, other):
            pass
        away.setblocking(False)
        with pytest.raises(BlockingIOError):
            away.recv(1)
        away.settimeout(10)
        decoder, said = Decoder(), list[Message]()
        while not said or said[-1]["n"] < 3000:
            count = await asyncio.to_thread(away.recv_into, decoder.buffer())
            said += [message for message, _ in decoder.received(count) if message]
        assert said[0]["event"] == "lost"
        assert said[0]["shown"] + len(said[1:]) == 3000
        assert {message["event"] for message in said[1:]} == {"output"}
        for sock in (away, other):
            sock.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("held_long")
def test_what_is_held_leaves_before_the_connection_is_closed(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Host(tmp_path)
        client = host.connect(since=0)
        await until_read(host)
        host.journal.append({"event": "rank_done", "rank": 0})
        host.sessions.pump(is_urgent=False)
        host.sessions.close()
        assert [message["n"] for message in received(client)] == [1]
        client.close()

    asyncio.run(scenario())


def test_an_answer_leaves_before_a_client_is_cut_off_that_lacks_many_events(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_TURN", 0.0)

    async def scenario() -> None:
        host = Host(tmp_path)
        for n in range(3000):
            host.journal.append({"event": "formed", "rank": n})
        client = host.connect(since=0)
        [session] = host.sessions._sessions
        while session.feed._turn is None:
            await asyncio.sleep(0)
        session.feed.answer(1, {"done": True})
        host.sessions.close()
        decoder, said = Decoder(), list[Message]()
        while count := client.recv_into(decoder.buffer()):
            said += [message for message, _ in decoder.received(count) if message]
        assert said[-1] == {"re": 1, "done": True}
        client.close()

    asyncio.run(scenario())


def test_who_has_caught_up_was_told_before_what_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_feed, "_TURN", 0.0)

    async def scenario() -> None:
        host = Host(tmp_path)
        host.journal._read_log = lambda rank, offset, size: b""  # it does not have that any more

        def print_lines(count: int) -> None:
            for n in range(count):
                host.journal.append({"event": "output", "rank": 0, "data": b"x"}, logged=(n, 1))

        print_lines(1000)
        client = host.connect(since=0)
        [session] = host.sessions._sessions
        while session.feed._turn is None:
            await asyncio.sleep(0)
        session.feed.answer(1, {"caught_up": True})
        print_lines(1000)
        decoder, said = Decoder(), list[Message]()
        while not said or said[-1].get("n") != host.journal.last:
            count = await asyncio.to_thread(client.recv_into, decoder.buffer())
            said += [message for message, _ in decoder.received(count) if message]
        lost = next(each["n"] for each in said if each.get("event") == "lost")
        assert lost >= 1000
        assert [each.get("n") for each in said[:3]] == [lost, None, lost + 1]
        client.close()

    asyncio.run(scenario())


class Running(Host):
    """An agent that has taken a run as soon as it is asked."""

    def answer(self, token: str, message: Message) -> Message:
        self.journal.append({"event": "run_began", "run": message["run"]})
        self.sessions.pump(is_urgent=False)
        return {}

    def finish(self, run: str, rank: int, bound: dict[str, bool] | None = None) -> None:
        done = {"event": "rank_done", "rank": rank, "run": run, "outcome": "ok", "arrived": []}
        self.journal.append({**done, "seconds": 0.5, **({"bound": bound} if bound else {})})

    async def ask(self, client: socket.socket, number: int, run: str) -> None:
        client.sendall(encode({"op": "run", "id": number, "run": run}))
        await until_read(self)


async def followed(host: Host) -> socket.socket:
    """Return a client that has been greeted and follows the journal."""
    client = host.greet()
    client.sendall(encode({"op": "follow", "since": 0}))
    await until_read(host)
    received(client)
    return client


@pytest.mark.parametrize("field", ["serves", "talks", "first"])
def test_a_kernel_that_waits_for_the_answer_has_it_while_the_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, field: str
) -> None:
    monkeypatch.setattr(event_feed, "TAKEN_WITHIN", 60.0)

    async def scenario() -> None:
        host = Running(tmp_path)
        client = await followed(host)
        client.settimeout(10)
        client.sendall(encode({"op": "run", "id": 1, "run": "r", field: True}))
        while 1 not in [message.get("re") for message in await asyncio.to_thread(received, client)]:
            pass
        client.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("held_long")
def test_the_ends_of_ranks_are_one_message_with_the_answer_and_the_beginning(
    tmp_path: Path,
) -> None:
    async def scenario() -> None:
        host = Running(tmp_path)
        client = await followed(host)
        await host.ask(client, 1, "r")
        for rank in range(3):
            host.finish("r", rank)
            host.sessions.pump(is_urgent=rank == 2)
        [message] = received(client)
        common = msgpack.unpackb(message.pop("common"))
        assert common == {"arrived": []}
        fields = {"run": "r", "ranks": [0, 1, 2], "seconds": [0.5] * 3, "began": True}
        assert message == {"event": "ranks_done", **fields, "n": 4, "re": 1}
        client.close()

    asyncio.run(scenario())


def test_one_that_has_not_asked_is_told_that_the_run_has_begun(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Running(tmp_path)
        client = await followed(host)
        await host.ask(client, 1, "r")
        late = host.connect(since=0)
        await until_read(host)
        assert [message["event"] for message in received(late)] == ["run_began"]
        host.finish("r", 0)
        host.sessions.pump()
        [end] = received(late)
        assert (end["event"], end["n"], end["began"]) == ("ranks_done", 2, False)
        for sock in (client, late):
            sock.close()

    asyncio.run(scenario())


@pytest.mark.usefixtures("held_long")
def test_what_is_not_alike_is_not_one_message_and_all_is_in_order(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Running(tmp_path)
        client = await followed(host)
        await host.ask(client, 1, "r")
        host.finish("r", 0)
        host.finish("r", 1, {"x": True})
        host.finish("r", 2, {"x": True})
        host.journal.append({"event": "rank_exited", "rank": 3, "run": "r"})
        host.finish("r", 4)
        host.sessions.pump()
        await host.ask(client, 2, "s")
        host.finish("s", 0)
        host.sessions.pump()
        said = [(each["n"], each.get("ranks"), each.get("began")) for each in received(client)]
        assert said == [
            (2, [0], True),
            (4, [1, 2], False),
            (5, None, None),
            (6, [4], False),
            (8, [0], True),
        ]
        client.close()

    asyncio.run(scenario())


def test_that_a_run_was_taken_is_said_also_while_it_goes_on(tmp_path: Path) -> None:
    async def scenario() -> None:
        host = Running(tmp_path)
        client = await followed(host)
        await host.ask(client, 1, "r")
        assert await asyncio.to_thread(received, client) == [{"re": 1}]
        host.journal.append({"event": "output", "rank": 0, "run": "r", "data": b"x"})
        host.sessions.pump()
        assert [message["event"] for message in received(client)] == ["run_began", "output"]
        client.close()

    asyncio.run(scenario())
