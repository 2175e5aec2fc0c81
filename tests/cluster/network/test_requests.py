"""Requests to agents: each has an answer or an end, and many are waited for as one."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from itertools import chain
from pathlib import Path

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky import __version__
from jupyter_sky.cluster.network import connection as connections
from jupyter_sky.cluster.network import incoming
from jupyter_sky.cluster.network.blobs.download import FETCH_WITHIN
from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.network.requests import pending
from jupyter_sky.cluster.network.requests.answers import Answers
from jupyter_sky.cluster.network.requests.events import Events, Taking
from jupyter_sky.cluster.network.requests.pending import PendingRequests, end_of_agent
from jupyter_sky.cluster.network.requests.seen import Seen
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.providers.base import AgentGone, MachineGone, Node
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.transport.frames import (
    LARGEST_MESSAGE,
    PREFIX,
    Message,
    ProtocolError,
    SharedFields,
    decode_message,
    encode,
)
from jupyter_sky.transport.protocol.events import (
    Ending,
    Event,
    Lost,
    Output,
    Prompted,
    RankDone,
    Saved,
)
from jupyter_sky.transport.together.ranks_done import RanksDone


class Requests(PendingRequests):
    """Those of a connection whose link comes and goes."""

    def __init__(self) -> None:
        self.up = True
        super().__init__(lambda: self.up, lambda: "there is no link", lambda: "gpu1")

    def ask(
        self, within: float | None, link_within: float | None, op: str = "x"
    ) -> asyncio.Future[Message]:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.add(self.new_number(), {"op": op}, answer, within, link_within)
        return answer

    def change_link(self, up: bool) -> list[Message]:
        self.up = up
        return self.on_link_changed()


def quick_clock() -> Callable[[float], Awaitable[None]]:
    """Return what puts the clock of the running loop on, bit by bit: it does not stand still."""
    loop, ahead = asyncio.get_running_loop(), 0.0
    usual = loop.time
    loop.time = lambda: usual() + ahead  # type: ignore[method-assign]

    async def pass_time(seconds: float) -> None:
        nonlocal ahead
        for _ in range(round(seconds)):
            ahead += 1.0
            await asyncio.sleep(0)
        await asyncio.sleep(0.01)  # in which timers that are due run first

    return pass_time


def test_each_request_is_given_up_in_its_time_whatever_was_asked_before() -> None:
    async def scenario() -> None:
        requests = Requests()
        late, never = requests.ask(600.0, None), requests.ask(None, None)
        middle, early = requests.ask(0.1, None), requests.ask(0.05, None)
        for asked in (early, middle):
            with pytest.raises(ClusterLost, match="did not answer"):
                async with asyncio.timeout(10):
                    await asked
        assert not late.done() and not never.done()
        again = requests.ask(0.05, None)  # the timer waits for the late one now
        with pytest.raises(ClusterLost):
            await again
        requests.on_answer({"re": 1})
        assert (await late)["re"] == 1

    asyncio.run(scenario())


def test_the_time_without_a_link_counts_in_all() -> None:
    async def scenario() -> None:
        pass_time = quick_clock()
        requests = Requests()
        asked = requests.ask(None, 100.0)
        assert [message["id"] for message in requests.change_link(up=False)] == [1]
        await pass_time(60)
        requests.change_link(up=True)
        await pass_time(1000)
        assert not asked.done()
        requests.change_link(up=False)
        assert not asked.done()
        await pass_time(60)
        with pytest.raises(NoConnection, match="there is no link"):
            asked.result()

    asyncio.run(scenario())


def test_the_time_in_which_this_process_stood_still_does_not_count(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(pending, "_STOOD_STILL", 0.05)
    monkeypatch.setattr(pending, "_LOOK_EVERY", 0.05)

    async def scenario() -> None:
        requests = Requests()
        asked = requests.ask(0.15, 0.15)
        time.sleep(0.3)  # as where a laptop's lid is closed
        await asyncio.sleep(0.01)
        assert not asked.done()
        requests.change_link(False)
        time.sleep(0.3)
        await asyncio.sleep(0.01)
        assert not asked.done()
        with pytest.raises(NoConnection):
            await asked

    asyncio.run(scenario())


def test_a_node_that_sends_no_more_of_what_is_fetched_is_waited_for_only_so_long() -> None:
    async def scenario() -> None:
        pass_time = quick_clock()
        connection = reached()
        connection._link, connection._up = Link(), True  # type: ignore[assignment]
        fetching = asyncio.ensure_future(connection.fetch("a digest", 3))
        for offset in range(2):
            await pass_time(0.8 * FETCH_WITHIN)
            assert not fetching.done()
            connection._receive({"piece": 1, "offset": offset}, memoryview(b"x"))
        await pass_time(1.1 * FETCH_WITHIN)
        with pytest.raises(ClusterLost, match="did not answer within 120 s"):
            await fetching

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("away", "gone", "said"),
    [
        (0.0, AgentGone(), "ended"),
        (8 * 3600.0, AgentGone(), "ended while this notebook was away for 8 h 00 min"),
        (8 * 3600.0, MachineGone("its job was cancelled"), "ended: its job was cancelled"),
        (9.0, AgentGone("", up_for=7.0), "ended: its machine was started again 7 s ago"),
        (9.0, AgentGone("", up_for=3600.0), "ended"),
    ],
)
def test_who_was_away_when_an_agent_ended_is_told_so(
    away: float, gone: AgentGone, said: str
) -> None:
    """Its node has ended by itself, most likely, as it does without a notebook."""
    assert end_of_agent(gone, time.time() - away) == (said, False)


def test_a_value_is_waited_for_however_long_there_is_no_link() -> None:
    """What took hours to compute is not to be computed again."""

    async def scenario() -> None:
        loop, ahead = asyncio.get_running_loop(), 0.0
        usual = loop.time
        loop.time = lambda: usual() + ahead  # type: ignore[method-assign]
        connection = reached()
        connection._link, connection._up = Link(), True  # type: ignore[assignment]
        fetching = asyncio.ensure_future(connection.fetch("a digest", 2))
        await asyncio.sleep(0)
        connection._receive({"piece": 1, "offset": 0}, memoryview(b"x"))
        connection._up = False
        connection._requests.on_link_changed()
        ahead += 24 * 3600.0
        await asyncio.sleep(0.01)  # in which timers that are due run first
        assert not fetching.done()
        connection._up = True
        [asked] = connection._requests.on_link_changed()
        assert connection._downloads.resume(asked)["offset"] == 1
        connection._receive({"piece": 1, "offset": 1}, memoryview(b"y"))
        assert len(await fetching) == 2

    asyncio.run(scenario())


ASKED = sorted(incoming._ANSWERS.keys() - {"add_peers", "run", "tell"})


@pytest.mark.parametrize("op", ASKED)
def test_an_answer_without_what_was_asked_for_names_the_node(op: str) -> None:
    async def scenario() -> None:
        requests = Requests()
        for number, wrong in enumerate(({}, {"missing": []}, {"error": 5}), 1):
            asked = requests.ask(None, None, op)
            requests.on_answer({"re": number, **wrong})
            said = rf"gpu1 sent what cannot be read \(its answer to '{op}'\)"
            with pytest.raises(SkyError, match=said):
                await asked

    asyncio.run(scenario())


def test_a_refusal_is_a_sentence_and_no_command_for_a_terminal() -> None:
    async def scenario() -> None:
        requests = Requests()
        asked = requests.ask(None, None, "read")
        number = requests.new_number() - 1
        waiting = asyncio.ensure_future(requests.wait_for(number, asked))
        await asyncio.sleep(0)
        requests.on_answer({"re": number, "error": "no\x1b]52;c;ZXZpbA==\x07\n\x9b6n" + "!" * 9999})
        with pytest.raises(SkyError) as caught:
            await waiting
        assert str(caught.value).startswith("no !!!")
        assert len(str(caught.value)) <= 2000

    asyncio.run(scenario())


EVIL = "\x1b]52;c;ZXZpbA==\x07"


def test_what_nodes_tell_the_user_commands_no_terminal() -> None:
    frame = {"place": EVIL, "line": 1, "function": "f", "text": f"{EVIL}x = 1", "own": True}
    rank = {"rank": 0, "run": None, "ended": None, "answered": "itself", "frames": [frame]}
    rank |= {"collectives": [], "recent": [], "children": []}
    volume = {"url": EVIL, "path": EVIL, "files": 1, "size": 1, "left": [EVIL], "trouble": EVIL}
    told: dict[str, Message] = {
        "inspect": {"seen": [rank]},
        "install": {"installed": [EVIL], "trouble": f"no{EVIL}\n\x1b[31mroom", "lacks": None},
        "write_back": {"volumes": [volume]},
        "reach": {"failed": {1: EVIL}},
    }
    # A name and a value of a node are what they are.
    data: dict[str, Message] = {
        "find": {
            "files": [{"path": EVIL, "name": EVIL, "size": 1, "changed": 1, "mode": 0}],
            **{"missing": [], "has_more": False, "links_out": []},
        },
        "variables": {"variables": {"A": EVIL}},
    }

    async def answer(op: str, said: Message) -> Message:
        requests = Requests()
        asked = requests.ask(None, None, op)
        requests.on_answer({"re": 1, **said})
        return await asked

    for op, said in told.items():
        assert "]52;c" not in repr(asyncio.run(answer(op, said)))
    assert asyncio.run(answer("install", told["install"]))["trouble"] == "no\n\x1b[31mroom"
    for op, said in data.items():
        assert asyncio.run(answer(op, said)).items() >= said.items()
    taken = Taken(frozenset({0}), None)
    asked = {"event": "prompted", "rank": 0, "run": "r", "kind": "debugger", "number": 1}
    shown = {"prompt": f"name:{EVIL}", "text": f"\x1b[1m->{EVIL}", "place": f"cell{EVIL}"}
    taken.receive({**asked, **shown, "n": 1})
    taken.receive({"event": "ending", "reason": f"because{EVIL}", "whole": True, "n": 2})
    prompted = Prompted(0, "r", "debugger", 1, prompt="name:", text="\x1b[1m->", place="cell")
    assert taken.events == [prompted, Ending("because", True)]


def test_what_a_node_tells_of_earlier_runs_commands_no_terminal() -> None:
    began = {"event": "run_began", "run": "r", "ranks": [[0, 1]], "title": f"train{EVIL}()"}
    latest = {**began, "n": 1, "unseen": True, "show": [], "asked": {0: ["x"]}, "seconds": 1.0}
    rank = {"rank": 0, "pid": 7, "generation": 1, "group_size": 1, "forming": None}
    rank |= {"run": "r", "names": {"x": "a"}, "given_up": f"it was killed{EVIL}"}
    about = {"version": __version__, "cluster": "c", "id": "0a", "last": 1, "ending": False}
    seen = {"missing": [], "shared": False, "versions": {}, "leaving": None}
    said = incoming.welcome({"welcome": True, **about, **seen, "latest": latest, "ranks": [rank]})
    assert said["latest"] and said["latest"]["title"] == "train()"
    assert said["ranks"][0].get("given_up") == "it was killed"


def test_what_many_are_asked_for_is_sent_again_as_a_whole() -> None:
    async def scenario() -> None:
        requests, answers = Requests(), Answers[str](pytest.fail)
        shared = SharedFields({"op": "run", "code": "x"})
        answer = answers.expect("a node")
        requests.add(requests.new_number(), {"ranks": [3]}, answer, 30.0, None, shared)
        [message] = requests.on_link_changed()
        assert message == {"op": "run", "code": "x", "ranks": [3], "id": 1, "settled": 1}

    asyncio.run(scenario())


def test_a_request_that_is_too_large_is_refused_and_not_sent_again_over_each_new_link() -> None:
    async def scenario() -> None:
        requests, refused = Requests(), list[SkyError]()
        large = SharedFields({"op": "run", "code": "x" * (LARGEST_MESSAGE + 1)})
        answers = Answers[str](lambda node, why: refused.append(why))
        for up in (True, False):
            requests.change_link(up)
            with pytest.raises(
                SkyError, match=r"this cannot be sent to gpu1: a message of .*large"
            ):
                await requests.ask(None, None, "x" * (LARGEST_MESSAGE + 1))
            answer = answers.expect("a node")
            requests.add(requests.new_number(), {"ranks": [3]}, answer, 30.0, None, large)
        assert requests.on_link_changed() == [] and len(refused) == 2

    asyncio.run(scenario())


def test_answers_are_waited_for_until_all_are_there() -> None:
    async def scenario() -> None:
        answers = Answers[int](pytest.fail)
        first, second = map(answers.expect, range(2))
        waiting = asyncio.ensure_future(answers.wait())
        await asyncio.sleep(0)
        first.set_result({})
        await asyncio.sleep(0)
        assert not waiting.done()
        second.set_result({})
        await waiting
        await Answers[int](pytest.fail).wait()  # of nobody

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [True, False], ids=["before it is waited for", "meanwhile"])
def test_the_first_refusal_is_raised_while_others_have_not_answered(before: bool) -> None:
    async def scenario() -> None:
        refused: list[tuple[int, str]] = []
        answers = Answers[int](lambda node, why: refused.append((node, str(why))))
        asked = [*map(answers.expect, range(3))]

        def refuse() -> None:
            asked[1].set_result({"error": "rank 1 is busy"})
            asked[2].set_exception(ClusterLost("gone"))

        if before:
            refuse()
        else:
            asyncio.get_running_loop().call_soon(refuse)
        with pytest.raises(SkyError, match="rank 1 is busy"):
            await answers.wait()
        await asyncio.sleep(0)
        assert refused == [(1, "rank 1 is busy"), (2, "gone")]
        assert [each.done() for each in asked] == [False, True, True]

    asyncio.run(scenario())


def test_a_node_that_lacks_data_has_not_begun() -> None:
    async def scenario() -> None:
        refused: list[int] = []
        answers = Answers[int](lambda node, why: refused.append(node))
        answers.expect(3).set_result({"missing": ["a digest"]})
        with pytest.raises(SkyError, match="lacks data"):
            await answers.wait()
        assert refused == [3]

    asyncio.run(scenario())


class Link:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)

    def send_encoded(self, data: bytes) -> None:
        self.sent.append(decode_message(data[PREFIX.size :]))


def test_an_agent_is_told_what_was_seen_by_the_next_request_or_heartbeat() -> None:
    link = Link()
    seen = Seen(lambda: link)  # type: ignore[arg-type, return-value]
    assert seen.news() == {} and seen.heartbeat() == {}
    seen.note(3)
    assert seen.news() == {"seen": 3} and seen.news() == {} and seen.heartbeat() == {}
    seen.note(4)
    seen.note(5)
    assert seen.heartbeat() == {"op": "seen", "n": 5}
    seen.tell()
    assert link.sent == []
    seen.note(6)
    seen.tell()
    seen.note(7, at_once=True)
    assert link.sent == [{"op": "seen", "n": 6}, {"op": "seen", "n": 7}]


def reached() -> Connection:
    """Return a connection without a link to the machine of rank 1."""
    node = Node(0, "127.0.0.1", "lo", (1,))
    return Connection(
        LocalMachine(Path("/nowhere"), Path("/nowhere"), 0, (node,)), ConnectionListener()
    )


def test_a_new_link_is_announced_before_what_comes_over_it() -> None:
    """The end of a run is among that, and its cell would say to its end that there is no link."""
    said = []

    class Said(ConnectionListener):
        def on_link_changed(self, connection: Connection) -> None:
            said.append("connected" if connection.is_up else "cut")

        def on_event(self, connection: Connection, event: Event) -> None:
            said.append("event")

    async def scenario() -> None:
        connection = Connection(reached().machine, Said())
        connection._link = Link()  # type: ignore[assignment]
        connection.broken_since = 0.0
        connection._welcome = asyncio.get_running_loop().create_future()
        told = {"welcome": True, "version": "0.0.1", "missing": [], "cluster": "c", "ending": False}
        connection._receive(told, memoryview(b""))
        started = {"event": "rank_started", "rank": 1, "pid": 5, "n": 1}
        connection._receive(started, memoryview(b""))
        assert said == ["connected", "event"]
        assert (await connection._welcome)["cluster"] == "c"

    asyncio.run(scenario())


@pytest.mark.parametrize("since", [None, 7])
def test_events_are_asked_for_over_a_new_link_once_they_are_followed(
    monkeypatch: pytest.MonkeyPatch, since: int | None
) -> None:
    said: list[Message] = []

    class Heard:
        closed, silent_for, heard, fault = False, 0.0, 0.0, ""

        def __init__(self, *given: object, **named: object) -> None:
            pass

        def send(self, message: Message) -> None:
            said.append(message)

        def close(self) -> None:
            pass

    async def scenario() -> None:
        begun, goes_on = asyncio.Event(), asyncio.Event()

        async def reach(machine: LocalMachine) -> None:
            begun.set()
            await goes_on.wait()

        async def greeted(times: int) -> None:
            while [each["op"] for each in said].count("hello") < times:
                await asyncio.sleep(0)

        monkeypatch.setattr(LocalMachine, "open", reach)
        connection = Connection(reached().machine, ConnectionListener())
        goes_on.set()
        opening = asyncio.ensure_future(connection.open(None))
        await greeted(1)
        assert connection._welcome
        connection._welcome.set_result({})  # type: ignore[typeddict-item]
        await opening
        begun.clear()
        goes_on.clear()
        connection._link_closed()
        await begun.wait()
        if since is not None:
            connection.follow(since, since)  # while the new link is being made
        goes_on.set()
        await greeted(2)
        connection.close()

    monkeypatch.setattr(connections, "Link", Heard)
    asyncio.run(scenario())
    assert [each["since"] for each in said if each["op"] == "hello"] == [None, since]


class Taken:
    """What has come of an agent's events."""

    def __init__(self, ranks: frozenset[int], posted: str | None) -> None:
        self.events: list[Event] = []
        self.foreign: list[int] = []
        taking = Taking(self.events.append, self.events.extend, self.foreign.extend)
        self._events = Events(taking, RanksDone(), None)
        self._events.ranks, self._events.posted = ranks, posted

    def receive(self, message: Message) -> None:
        self._events.receive(decode_message(encode(message)[PREFIX.size :]))

    @property
    def ranks(self) -> list[int]:
        return [event.rank for event in self.events if isinstance(event, RankDone)]


def done(number: int, *ranks: int, **others: object) -> Message:
    """Return what a node says of ranks that are done with run ``r``."""
    common = msgpack.packb({"arrived": ["s"], "bound": {"x": True}})
    fields = {"common": common, "ranks": [*ranks], "seconds": [0.5] * len(ranks), "began": False}
    return {"event": "ranks_done", "run": "r", "n": number, **fields, **others}


@pytest.mark.parametrize("then", ["output", "ranks_done"])
def test_how_much_output_is_lost_is_told_once_also_where_parts_of_it_are(then: str) -> None:
    taken = Taken(frozenset({0}), "r")
    saved = {"event": "saved", "rank": 0, "run": "r", "path": "p", "step": 1.0}
    number = 0
    for shown in (5, 20, 100):
        number += shown
        taken.receive({"event": "lost", "shown": shown, "others": 0, "n": number})
        number += 1
        taken.receive({**saved, "n": number})
    output = {"event": "output", "rank": 0, "run": "r", "stream": "stdout", "data": b"x"}
    for _ in range(2):
        number += 1
        taken.receive({**output, "n": number} if then == "output" else done(number, 0))
    kinds = [type(event) for event in taken.events]
    assert kinds == [Saved] * 3 + [Lost] + [Output if then == "output" else RankDone] * 2
    assert taken.events[3] == Lost(125, 0)


def test_ends_that_come_as_one_are_events_each() -> None:
    taken = Taken(frozenset({1, 2, 3}), "r")
    taken.receive(done(3, 1, 2, began=True))  # the first is that the run has begun
    taken.receive(done(4, 3))
    assert taken.ranks == [1, 2, 3]
    assert taken.events[0] == RankDone(1, "r", "ok", bound={"x": True}, arrived=["s"], seconds=0.5)


def test_none_of_those_that_come_as_one_can_be_missed() -> None:
    taken = Taken(frozenset({1, 2, 3}), "r")
    for message in (done(3, 1, 2), done(1, 1, 2), done(5, 1, 2, began=True)):
        with pytest.raises(ProtocolError, match="missing"):
            taken.receive(message)
    assert taken.events == []
    taken.receive(done(2, 1, 2))
    # Ignored, an end with the number of another event would leave its run without one.
    with pytest.raises(ProtocolError, match="the number of an earlier one"):
        taken.receive(done(2, 1))


def test_a_node_ends_its_own_ranks_alone_also_where_they_come_as_one() -> None:
    taken = Taken(frozenset({1, 2}), "r")
    taken.receive(done(3, 1, 7, 2))
    assert taken.ranks == [1, 2] and taken.foreign == [7]


@pytest.mark.parametrize(
    "wrong",
    [
        {"ranks": [True]},
        {"ranks": [1.0]},
        {"seconds": []},
        {"seconds": ["1"]},
        {"seconds": None},
        {"seconds": [math.nan]},
        {"common": None},
        {"common": b""},
        {"run": 5},
        {"run": None},
        {"common": msgpack.packb({"bound": {"x": 1}})},
        {"common": msgpack.packb({"values": {"data": b"", "blobs": []}})},
        {"common": msgpack.packb({"rank": 5})},
    ],
    ids=str,
)
def test_what_is_none_of_those_is_refused(wrong: Message) -> None:
    taken = Taken(frozenset({1}), "r")
    taken.receive(done(1, 1))
    with pytest.raises(ProtocolError):
        taken.receive(done(2, 1, **wrong))
    assert taken.ranks == [1]


PLAUSIBLE: list[Message] = [
    {"re": 1, "size": 5, "seen": []},
    {"re": 2, "ack": 3, "sizes": [1], "payload": b"", "whole": 1},
    {"re": 3, "missing": [], "error": "no"},
    {"re": 4, "data": b"", "start": 0, "size": 0, "runs": [], "clock": 0.0},
    {"welcome": True, "version": "0.0.1", "missing": [], "cluster": "c", "ending": False},
    {"piece": 1, "offset": 0, "whole": 9},
    {"report": [{"rank": 1, "line": "", "utilisation": 0.5, "memory": [1, 2]}], "history": None},
    {"event": "rank_done", "n": 1, "rank": 1, "run": "r", "outcome": "ok", "values": None},
    {"event": "ranks_done", "n": 1, "run": "r", "ranks": [1], "seconds": [0.1], "common": b"\x80"},
    {"event": "output", "n": 1, "rank": 1, "run": "r", "stream": "stdout", "data": b"x"},
    {"event": "lost", "n": 9, "shown": 5, "others": 4},
]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=3,
)


@given(
    message=st.sampled_from(PLAUSIBLE),
    changes=st.dictionaries(st.sampled_from(sorted({*chain(*PLAUSIBLE)})), ANYTHING, max_size=2),
    payload=st.binary(max_size=9),
)
def test_whatever_a_node_sends_is_taken_or_refused(
    message: Message, changes: Message, payload: bytes
) -> None:
    connection = reached()
    connection._downloads.begin(connection._requests.new_number(), "blob", 9)
    sent = {**message, **changes}

    async def receive() -> None:
        if payload:
            connection._downloads.destination(sent, len(payload))
        connection._receive(sent, memoryview(payload))

    with suppress(ProtocolError):
        asyncio.run(receive())
    if "error" not in sent and incoming.is_answer("read", sent):
        incoming.read_parts({**sent, "payload": memoryview(payload)})
