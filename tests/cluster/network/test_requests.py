"""Requests to agents: each has an answer or an end, and many are waited for as one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from jupyter_sky.cluster.network.requests.answers import Answers
from jupyter_sky.cluster.network.requests.pending import PendingRequests
from jupyter_sky.cluster.network.requests.seen import Seen, SeenTeller
from jupyter_sky.errors import ClusterLost, NoConnection, SkyError
from jupyter_sky.transport.frames import Message, SharedFields


class Requests(PendingRequests):
    """Those of a connection whose link comes and goes."""

    def __init__(self) -> None:
        self.up = True
        super().__init__(lambda: self.up, lambda: "there is no link")

    def ask(self, within: float | None, link_within: float | None) -> asyncio.Future[Message]:
        answer: asyncio.Future[Message] = asyncio.get_running_loop().create_future()
        self.add(self.new_number(), {"op": "x"}, answer, within, link_within)
        return answer

    def change_link(self, up: bool) -> list[Message]:
        self.up = up
        return self.on_link_changed()


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
        requests = Requests()
        asked = requests.ask(None, 0.05)
        assert [message["id"] for message in requests.change_link(up=False)] == [1]
        await asyncio.sleep(0.03)
        requests.change_link(up=True)
        await asyncio.sleep(0.1)
        assert not asked.done()
        requests.change_link(up=False)
        with pytest.raises(NoConnection, match="there is no link"):
            await asked

    asyncio.run(scenario())


def test_what_many_are_asked_for_is_sent_again_as_a_whole() -> None:
    async def scenario() -> None:
        requests, answers = Requests(), Answers()
        shared = SharedFields({"op": "run", "code": "x"})
        answer = answers.expect(lambda why: None)
        requests.add(requests.new_number(), {"ranks": [3]}, answer, 30.0, None, shared)
        [message] = requests.on_link_changed()
        assert message == {"op": "run", "code": "x", "ranks": [3], "id": 1, "settled": 1}

    asyncio.run(scenario())


def test_answers_are_waited_for_until_all_are_there() -> None:
    async def scenario() -> None:
        answers = Answers()
        first, second = (answers.expect(pytest.fail) for _ in range(2))
        waiting = asyncio.ensure_future(answers.wait())
        await asyncio.sleep(0)
        first.set_result({})
        await asyncio.sleep(0)
        assert not waiting.done()
        second.set_result({})
        await waiting
        await Answers().wait()  # of nobody

    asyncio.run(scenario())


@pytest.mark.parametrize("before", [True, False], ids=["before it is waited for", "meanwhile"])
def test_the_first_refusal_is_raised_while_others_have_not_answered(before: bool) -> None:
    async def scenario() -> None:
        answers, refused = Answers(), list[str]()
        note: Callable[[SkyError], object] = lambda why: refused.append(str(why))  # noqa: E731
        asked = [answers.expect(note) for _ in range(3)]

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
        assert refused == ["rank 1 is busy", "gone"]
        assert [each.done() for each in asked] == [False, True, True]

    asyncio.run(scenario())


def test_a_node_that_lacks_data_has_not_begun() -> None:
    async def scenario() -> None:
        answers, refused = Answers(), list[SkyError]()
        answers.expect(refused.append).set_result({"missing": ["a digest"]})
        with pytest.raises(SkyError, match="lacks data"):
            await answers.wait()
        assert len(refused) == 1

    asyncio.run(scenario())


class Link:
    """Keeps what is sent."""

    def __init__(self) -> None:
        self.sent: list[Message] = []

    def send(self, message: Message) -> None:
        self.sent.append(message)


def test_an_agent_is_told_what_was_seen_by_the_next_request_or_soon() -> None:
    async def scenario() -> None:
        link, teller = Link(), SeenTeller()
        seen = Seen(lambda: link, teller)  # type: ignore[arg-type, return-value]
        assert seen.news() == {}
        seen.note(3)
        assert seen.news() == {"seen": 3} and seen.news() == {}
        seen.note(4)
        seen.note(5)
        while not link.sent:
            await asyncio.sleep(0.001)
        assert link.sent == [{"op": "seen", "n": 5}]
        seen.tell()
        assert len(link.sent) == 1
        seen.note(6)
        seen.tell()
        assert link.sent[1:] == [{"op": "seen", "n": 6}]

    asyncio.run(scenario())
