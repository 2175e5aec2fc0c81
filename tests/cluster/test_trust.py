"""A node that was taken over gets no code into the kernel, and speaks for its own ranks only."""

from __future__ import annotations

import pickle
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster import rank_log
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import owed_runs, registry
from jupyter_sky.cluster.runs import talk
from jupyter_sky.cluster.runs.task import RunNotice, Task
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.commands import logs
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec, Image
from jupyter_sky.transport.event_loop import wait
from jupyter_sky.transport.frames import Message, encode
from jupyter_sky.transport.protocol.error_report import report
from tests.cluster.conftest import Cells
from tests.cluster.taken_over import agent_folder, single_end, taken_over
from tests.waiting import until

WORKER = (
    "import gc\n"
    "from jupyter_sky.node.rank.worker import RankWorker\n"
    "worker = next(each for each in gc.get_objects() if isinstance(each, RankWorker))\n"
)


class Touch:
    """Makes a file where it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return open, (str(self.path), "w")


def forged_value(path: Path) -> dict[str, Any]:
    return {"stream": pickle.dumps(Touch(path)), "buffers": [], "tokens": {"first": 0, "known": {}}}


@pytest.fixture
def pair(new: Callable[..., Cells]) -> Cells:
    """A cluster of two agents with a rank each."""
    return new(2, framework=False, provider=Local(machines=2))


@pytest.fixture
def again() -> Iterator[Callable[[Cells], Cells]]:
    """Takes up a cluster as another kernel does."""
    made: list[Cluster] = []

    def attach(cells: Cells) -> Cells:
        row = registry.find(cells.cluster.name)
        assert row is not None
        _, runtime_env = assemble(ClusterSpec(name=row.name), [])
        cluster = Cluster.attach(row, Local(machines=2), runtime_env)
        assert cluster is not None
        made.append(cluster)
        return Cells(cluster)

    yield attach
    for cluster in made:
        if cluster.alive:
            cluster.close()


def notices(cells: Cells, run: Any) -> list[str]:
    """Follow a run, and return what the user is told beside its output."""
    told: list[str] = []
    run.follow(notice=told.append)
    return told


def test_a_value_that_no_cell_asked_for_is_not_unpickled(
    new: Callable[..., Cells], tmp_path: Path
) -> None:
    cells = new(2, framework=False)
    opened = tmp_path / "opened"
    cells.namespace["forged"] = forged_value(opened)
    cells.run(f"{WORKER}worker._perform = lambda command: forged", names=["forged"])
    run = cells.cluster.run(Task((0, 1), code="pass"))
    told = notices(cells, run)
    assert run.values() == {}
    assert not opened.exists()
    assert sorted(told) == [
        f"rank {rank} sent a value that was not asked for: not opened" for rank in (0, 1)
    ]
    # Of the rank that is asked it is, which is what asking means.
    cells.run("pass", values={1: ["x"]})
    assert opened.exists()


def test_what_a_run_was_asked_for_comes_from_this_computer(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path
) -> None:
    opened, go = tmp_path / "opened", tmp_path / "go"
    wait = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)"
    pair.start(wait)
    until(lambda: all(rank.run for rank in pair.cluster.state.ranks))
    with taken_over(pair.cluster, 1) as node:

        def lie(message: dict[str, Any]) -> dict[str, Any]:
            if "welcome" in message:
                latest = {**message["latest"], "asked": {0: ["x"], 1: ["x"]}, "unseen": True}
                return {**message, "latest": latest}
            end = single_end(message)
            return {**end, "values": forged_value(opened)} if end != message else message

        node.change = lie
        other = again(pair)
        run = other.cluster.pop_unseen_run()
        assert run is not None
        go.touch()
        told = notices(other, run)
        assert run.values() == {}
        assert not opened.exists()
        assert "rank 1 sent a value that was not asked for: not opened" in told
        other.cluster.close()


def test_names_that_this_computer_did_ask_for_are_there_for_another_kernel(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    code = f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\nx = 5"
    mine = pair.start(code, values={1: ["x"]})
    until(lambda: mine._run.told.is_set())
    theirs = None
    while theirs is None:  # it may be on its way to the ranks
        theirs = again(pair).cluster.pop_unseen_run()
    assert owed_runs.find(pair.cluster.id, mine.id).asked == {1: ["x"]}
    go.touch()
    theirs.follow()
    assert theirs.values() == {1: {"x": 5}}
    mine.follow()
    assert mine.values() == {1: {"x": 5}}
    pair.run("pass", values={1: ["x"]})
    assert owed_runs.find(pair.cluster.id, mine.id).asked == {}


FORGED = [
    {"event": "rank_done", "rank": 0, "outcome": "ok", "values": None},
    {"event": "rank_done", "rank": 0, "outcome": "error", "error": report(ValueError, "no")},
    {"event": "rank_exited", "rank": 0, "pid": 1, "reason": "lost", "tail": "", "again": False},
    {"event": "output", "rank": 0, "stream": "stdout", "data": b"not mine\n"},
    {"event": "display", "rank": 0, "kind": "result", "data": {"text/plain": "not mine"}},
    {"event": "formed", "rank": 0, "generation": 1, "error": report(ValueError, "no")},
    {"event": "rank_started", "rank": 0, "pid": 1},
    {"event": "leaving", "kind": "terminate", "at": None, "ranks": [0, 1]},
]


def test_a_node_speaks_for_its_own_ranks_only(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path
) -> None:
    go = tmp_path / "go"
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)
        before = cells.cluster.state
        run = cells.start(
            f"import os, time\nwhile not os.path.exists({str(go)!r}): time.sleep(0.01)\n"
            "print('mine')\nx = 1",
            values={0: ["x"]},
        )
        while not all(rank.run for rank in cells.cluster.state.ranks):
            time.sleep(0.01)
        for event in FORGED:
            node.say({"run": run.id, **event})
        common = msgpack.packb({"arrived": []})
        several = {"common": common, "ranks": [0], "seconds": [0.1], "began": False}
        node.say({"event": "ranks_done", "run": run.id, **several})
        node.say({"event": "output", "rank": 1, "run": run.id, "stream": "stdout", "data": b"end"})
        said = []
        events = cells.cluster._scheduler._runs[run.id].queue
        while not said or not isinstance(said[-1], bytes):
            event = events.get()
            said.append(event.text if isinstance(event, RunNotice) else event.data)
        assert said[-1] == b"end"
        assert len(said) == 2
        assert "spoke for rank 0, which it does not have: that was dropped" in said[0]
        assert [rank.pid for rank in cells.cluster.state.ranks] == [
            rank.pid for rank in before.ranks
        ]
        assert all(rank.run == run.id for rank in cells.cluster.state.ranks)
        assert "spoke for rank 0" in cells.cluster.snapshot()["cluster"]["note"]
        go.touch()
        run.follow(cells.events.append)
        assert run.values() == {0: {"x": 1}}
        assert cells.text() == "mine\n"
        cells.cluster.down()


def test_a_node_has_samples_of_its_own_ranks_only(
    pair: Cells, again: Callable[[Cells], Cells]
) -> None:
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)
        wait = "import time\nwhile True: time.sleep(0.01)"
        run = cells.start(wait)
        try:
            until(lambda: all(rank.run for rank in cells.cluster.state.ranks))

            def lie(message: dict[str, Any]) -> dict[str, Any]:
                if "number" not in message:
                    return message
                both = [{**each, "rank": rank} for each in message["ranks"] for rank in (0, 1)]
                return {**message, "ranks": both}

            node.change = lie
            profile = cells.cluster.profiler.profile(0.2, [0, 1])
            assert [each.rank for each in profile.ranks] == [0, 1]
        finally:
            run.stop()
            run.follow()
            cells.cluster.down()


def test_no_node_sets_variables_of_others(
    new: Callable[..., Cells], again: Callable[[Cells], Cells]
) -> None:
    image = Image(env={"PROXY": "mine", "TOKEN": "old"})
    pair = new(2, framework=False, provider=Local(machines=2), image=image)
    pair.cluster.variables.renew({"TOKEN": "new"})

    def lie(message: Message) -> Message:
        forged = {"PROXY": "theirs", "TOKEN": "theirs", "LD_PRELOAD": "theirs"}
        return {**message, "variables": forged} if "variables" in message else message

    names = ["PROXY", "TOKEN"]
    with taken_over(pair.cluster, 0) as head:
        head.change = lie
        cluster = again(pair).cluster
        assert cluster.variables.take_over(names) == {"PROXY": "mine", "TOKEN": "new"}
        assert cluster.spec.image.env == {"PROXY": "mine", "TOKEN": "new"}
        with taken_over(pair.cluster, 1) as other:
            other.change = lie
            assert again(pair).cluster.variables.take_over(names) == {}


def test_a_rank_speaks_for_itself_only(new: Callable[..., Cells]) -> None:
    cells = new(2, framework=False)
    pids = [rank.pid for rank in cells.cluster.state.ranks]
    cells.run(
        f"{WORKER}"
        "run = worker._run\n"
        "done = {'event': 'rank_done', 'outcome': 'error', 'error': None, 'values': None,\n"
        "        'broken': True, 'bound': {}, 'arrived': None}\n"
        "worker._send({**done, 'rank': 0, 'run': run})\n"
        "worker._send({**done, 'rank': 1, 'run': 'another'})\n"
        "worker._send({'event': 'rank_exited', 'rank': 1, 'pid': 1, 'reason': '', 'run': run,\n"
        "              'tail': '', 'again': False})\n"
        "worker._send({'event': 'ending', 'reason': 'because'})\n"
        "worker._send({'event': 'leaving', 'kind': 'stop', 'at': None, 'ranks': [0]})\n"
        "worker._send({'reserved': 22})\n"
        "worker._send({'nonsense': 1})\n",
        ranks=[1],
        show=[1],
    )
    said = "rank 1 sent a message that is not its to send: it was dropped\n"
    assert cells.text("stderr") == said
    assert cells.cluster.log(1).data.decode() == said
    assert [rank.pid for rank in cells.cluster.state.ranks] == pids
    assert cells.ask("1 + 1") == [2, 2]


def test_what_a_node_sends_has_a_limit(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path
) -> None:
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)
        for message in ({"piece": 1, "offset": 0}, {"piece": []}, {"report": []}, {"event": "x"}):
            # What is said before the link is up again reaches nobody.
            until(lambda: all(each.is_up for each in cells.cluster._controller.connections))
            broken = len(node.clients)
            node.say_raw(encode(message, 1 << 50))
            while len(node.clients) == broken:  # hung up, and connected again
                time.sleep(0.01)
        assert cells.ask("1 + 1") == [2, 2]

        def lie(message: dict[str, Any]) -> dict[str, Any]:
            if message.get("event") == "rank_done":
                blob = {"blob": "ab" * 32, "size": 1 << 50}
                return {**message, "values": {**message["values"], "stream": blob}}
            return message

        node.change = lie
        with pytest.raises(
            SkyError, match=r"what was asked for takes 1126 TB, and .* of memory is free here"
        ):
            cells.run("x = 1", values={1: ["x"]})
        cells.cluster.down()


def test_a_node_that_left_is_not_let_in_any_more(new: Callable[..., Cells], tmp_path: Path) -> None:
    cells = new(3, framework=False, provider=Local(machines=3))
    kept, left = (agent_folder(cells.cluster, number) for number in (0, 2))
    head = cells.cluster.state.nodes[0]
    shown = tmp_path / "peers.pem"
    shutil.copy(left / "peers.pem", shown)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(shown)

    def knock() -> bytes:
        with (
            socket.create_connection((head.addr, head.port)) as sock,
            context.wrap_socket(sock) as secured,
        ):
            secured.sendall(encode({"op": "hello"}))
            return secured.recv(100)

    assert knock() == encode({"op": "hello"})
    assert (kept / "peers.pem").stat().st_mode & 0o777 == 0o600
    cells.cluster.scale(2)
    assert knock() == b""
    cells.cluster.scale(3)
    assert knock() == b""
    assert cells.ask("1") == [1] * 3


@pytest.mark.parametrize(
    ("wrong", "what"),
    [
        ({"outcome": "splendid"}, "the outcome of rank_done is malformed"),
        ({"ranks": ["1"]}, "the ranks of ranks_done are malformed"),
        ({"run": None}, "the run of ranks_done is malformed"),
        ({"n": 1 << 60}, "events are missing"),
        ({"n": 1}, "an event has the number of an earlier one"),
    ],
    ids=["an outcome that is none", "no ranks", "no run", "a number too high", "a number too low"],
)
def test_a_run_whose_end_a_node_does_not_tell_ends_there(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path, wrong: dict[str, Any], what: str
) -> None:
    printed = tmp_path / "printed"
    # The head has printed when the other rank comes to its end.
    code = f"""import os, time
if os.environ['SKYPILOT_NODE_RANK'] == '0':
    print('mine', flush=True)
    open({str(printed)!r}, 'w').close()
while not os.path.exists({str(printed)!r}): time.sleep(0.01)
x = 5"""
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)

        def lie(message: dict[str, Any]) -> dict[str, Any]:
            is_end = message.get("event") in ("rank_done", "ranks_done")
            return {**message, **wrong} if is_end else message

        node.change = lie
        # An end with a value is an event of its own.
        asked = {0: ["x"], 1: ["x"]} if "outcome" in wrong else {0: ["x"]}
        with pytest.raises(SkyError, match="node 1 sent what cannot be read") as caught:
            cells.run(code, values=asked)
        assert what in str(caught.value)
        assert [each.rank for each in caught.value.failures] == [1]
        assert cells.text() == "mine\n"
        assert f"({what})" in cells.cluster.snapshot()["cluster"]["note"]
        node.change = lambda message: message
        cells.cluster.down()


MALFORMED: list[dict[str, Any]] = [
    {"event": "output", "rank": 1, "run": None, "stream": "stdout", "data": "text"},
    {"event": "output", "rank": [], "run": None, "stream": "stdout", "data": b""},
    {"event": "rank_exited", "rank": 1},
    {"event": "rank_done", "rank": 1, "run": "r", "outcome": "ok", "values": {"stream": 5}},
    {"event": "formed", "rank": 1, "generation": 1, "error": {"type": "ValueError"}},
    {"event": "prepared", "versions": [], "missing": None},
    {"event": "leaving", "kind": "stop", "at": float("inf"), "ranks": [1]},
    {"event": "nonsense"},
    {"event": {}},
]


def test_what_is_malformed_does_no_harm_nor_what_is_not_told(
    pair: Cells, again: Callable[[Cells], Cells], monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.run("pass")
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        for wrong in ({"latest": {"run": 5}}, {"ranks": [{}]}, {"missing": None}, {"last": "5"}):

            def lie(message: dict[str, Any], wrong: dict[str, Any] = wrong) -> dict[str, Any]:
                return {**message, **wrong} if "welcome" in message else message

            node.change = lie
            with pytest.raises(SkyError, match="the link broke at once"):
                again(pair)
        node.change = lambda message: message
        cells = again(pair)
        raw: list[dict[str, Any]] = [
            {"report": [{"rank": 1}]},
            {"re": [1]},
            {"re": 1 << 60},
            {"welcome": 1},
            {"event": "output"},
            {"event": "output", "n": -1},
            {"piece": {}, "offset": 0},
        ]
        for message in [*MALFORMED, *raw]:
            # What is said before the link is up again reaches nobody.
            until(lambda: all(each.is_up for each in cells.cluster._controller.connections))
            broken = len(node.clients)
            if message in raw:
                node.say_raw(encode(message))
            else:
                node.say(message)
            # A welcome that nobody waits for says nothing.
            if "welcome" not in message:
                until(lambda before=broken: len(node.clients) > before)
        assert cells.ask("1 + 1") == [2, 2]
        assert cells.cluster.snapshot()["ranks"][1]["phase"] == "idle"
        node.change = lambda message: {"re": message["re"]} if "pieces" in message else message
        with pytest.raises(SkyError, match="node 1 sent what cannot be read .its answer to 'log'"):
            cells.cluster.log(1)

        # Of a run whose end is not told, Stop is the end.
        monkeypatch.setattr(talk, "ENDED_WITHIN", 0.0)
        controller = cells.cluster._controller
        controller.timeouts = replace(controller.timeouts, stop=0.1)
        untold = []

        def keep_back(message: dict[str, Any]) -> dict[str, Any]:
            if message.get("event") not in ("rank_done", "ranks_done"):
                return message
            untold.append(message)
            return {}

        node.change = keep_back
        run = cells.start("pass")
        run.begin()
        until(lambda: untold)
        run.stop()
        told = notices(cells, run)
        assert told == ["node 1 does not tell the end of a run that was stopped: it was ended"]
        node.change = lambda message: message
        assert cells.ask("1 + 1") == [2, 2]
        cells.cluster.down()


LOGS: dict[str, dict[str, Any]] = {
    "more than was asked for": {"data": b"x" * 11, "size": 11},
    "a part before it": {"start": 4},
    "a part before all": {"start": -1},
    "more than there is": {"size": 5},
    "more than there can be": {"size": 1 << 60},
    "a piece behind it": {"pieces": [(99, 1.0, "stdout")]},
    "pieces in another order": {"pieces": [(6, 1.0, "stdout"), (5, 1.0, "stdout")]},
    "a run before all": {"runs": [(-1, 1.0, "ab", "title")]},
    "a stream of its own": {"pieces": [(5, 1.0, "/etc/passwd")]},
    "a time that is none": {"clock": 1e308},
}


def test_a_log_is_the_part_that_was_asked_for(
    pair: Cells, again: Callable[[Cells], Cells], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)
        honest = {"data": b"text\n", "start": 5, "size": 10, "pieces": [], "runs": []}

        def lie(wrong: dict[str, Any]) -> None:
            said = {**honest, **wrong}
            node.change = lambda message: {**message, **said} if "pieces" in message else message

        def read(**where: Any) -> rank_log.LogPart:
            return wait(rank_log.read(cells.cluster._controller, 1, rank_log.LogPlace(**where)))

        lie({})
        assert read(tail=None, offset=5, limit=10).data == b"text\n"
        for why, wrong in LOGS.items():
            lie(wrong)
            with pytest.raises(SkyError, match="node 1 sent what cannot be read .its answer to 'l"):
                pytest.fail(f"{why}: {read(tail=None, offset=5, limit=10)}")
        with pytest.raises(SkyError, match="node 1 sent what cannot be read"):
            read(tail=1, limit=4)

        # However long a node goes on, it does not fill the disk.
        def go_on(message: dict[str, Any]) -> dict[str, Any]:
            nonlocal said
            if "pieces" not in message:
                return message
            said += 5
            return {**message, **honest, "start": said - 5, "size": 1 << 50}

        said = 0
        node.change = go_on
        monkeypatch.setattr(logs, "_MOST_SAVED", 500)
        with pytest.raises(SkyError, match="sends more than a log can have"):
            logs._save_log(cells.cluster, [1], str(tmp_path / "log"))
        node.change = lambda message: message
        cells.cluster.down()


def test_what_is_no_welcome_keeps_no_link_from_coming_back(
    pair: Cells, again: Callable[[Cells], Cells]
) -> None:
    with taken_over(pair.cluster, 1) as node:
        pair.cluster.close()
        cells = again(pair)
        wrong: list[dict[str, Any]] = [
            {"welcome": 1},
            {"welcome": True, "version": 5},
            {"welcome": True, "version": "0.0.1", "missing": 5, "cluster": "", "ending": False},
        ]
        left = list(wrong)

        def lie(message: dict[str, Any]) -> dict[str, Any]:
            # Its number is what the test keeps books with, and nobody reads.
            return {"last": 0, **left.pop()} if "welcome" in message and left else message

        node.change = lie
        node.say_raw(encode({"event": "output"}))
        until(lambda: not left)
        assert cells.ask("1 + 1") == [2, 2]
        cells.cluster.down()
