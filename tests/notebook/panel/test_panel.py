"""What the panel sends, how often, and what it leaves in the notebook's file."""

from __future__ import annotations

import copy
import functools
import json
import operator
from collections.abc import Mapping
from datetime import datetime
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.panel.static_view import as_html, as_text
from jupyter_sky.notebook.panel.strip import MIME, record_bundle
from jupyter_sky.notebook.panel.widget import LINES, LONGEST, overlap, shortened
from tests.notebook.panel.bench import Bench
from tests.notebook.panel.samples import HOSTILE, changed, epochs, snapshot
from tests.waiting import until

BAR = {"label": "", "part": 1.0, "count": "9/9", "left": None}


def merged(states: list[dict[str, Any]]) -> dict[str, Any]:
    """The parts as the page has them."""
    return functools.reduce(operator.or_, states)


def output(states: list[dict[str, Any]]) -> str:
    """What the page makes of the parts."""
    parts = merged(states)
    lines, more = parts["output"]["lines"], parts["more"]
    return "\n".join([*lines[more["drop"] : more["drop"] + more["keep"]], *more["added"]])


def test_the_first_message_has_everything(bench: Bench) -> None:
    [state] = bench.states
    assert state["cluster"]["name"] == "digits-3f2a"
    assert [state[f"rank_{rank}"]["rank"] for rank in range(state["size"])] == [0, 1, 2, 3]
    assert output(bench.states) == "", "the cell shows what the head prints"
    assert "export" in state["_esm"]
    assert ".jsky" in state["_css"]


def test_a_message_has_only_what_changed(bench: Bench) -> None:
    bench.shown = changed(bench.shown, rank_2={"line": "next"}, sent_bytes=13_000_000)
    bench.panel.update()
    bench.wait()
    [_, state] = bench.states
    assert state.keys() == {"use_2", "sent_bytes"}
    assert state["use_2"]["line"] == "next"


def test_nothing_is_sent_when_nothing_changed(bench: Bench) -> None:
    bench.shown = copy.deepcopy(bench.shown)
    bench.panel.update()
    bench.wait()
    assert len(bench.states) == 1


def test_lines_that_are_added_travel_alone(bench: Bench) -> None:
    bench.say({"kind": "select", "run": "r1", "rank": 0})
    bench.wait()
    bench.shown = changed(bench.shown, output={"text": "\n".join(epochs(14)) + "\n"})
    bench.panel.update()
    bench.wait()
    state = bench.states[-1]
    assert state == {"more": {"drop": 0, "keep": 12, "added": [*epochs(14)[12:], ""]}}


def test_ranks_come_and_go(bench: Bench) -> None:
    for nodes in (6, 2):
        bench.shown = snapshot(nodes)
        bench.panel.update()
        bench.wait()
    parts = merged(bench.states)
    assert parts["size"] == 2
    assert parts["rank_5"]["rank"] == 5


def test_at_most_ten_updates_a_second_and_the_last_one_is_not_lost(bench: Bench) -> None:
    bench.asked.clear()
    for number in range(1000):
        bench.shown = changed(bench.shown, rank_0={"line": f"line {number}"})
        bench.panel.update()
        bench.wait(0.001)
    bench.wait()
    assert 10 <= len(bench.asked) <= 11
    assert bench.states[-1]["use_0"]["line"] == "line 999"


def test_an_update_after_a_while_goes_at_once(bench: Bench) -> None:
    bench.wait(5.0)
    bench.panel.update()
    [(due, _)] = bench.due
    assert due == bench.now


def test_a_chosen_rank_is_asked_for(bench: Bench) -> None:
    bench.say({"kind": "select", "run": "an earlier one", "rank": 2})
    bench.wait()
    assert bench.asked[-1] is None
    bench.say({"kind": "select", "run": "r1", "rank": 3})
    bench.wait()
    assert bench.asked[-1] == 3
    bench.say({"kind": "select", "run": "r1", "rank": None})
    bench.wait()
    assert bench.asked[-1] is None


def test_a_chosen_rank_is_not_asked_for_after_its_run(bench: Bench) -> None:
    bench.say({"kind": "select", "run": "r1", "rank": 3})
    bench.wait()
    bench.shown = changed(bench.shown, run={"id": "r2"})
    bench.panel.update()
    bench.wait()
    bench.panel.update()
    bench.wait()
    assert bench.asked[-1] is None
    assert merged(bench.states)["output"]["rank"] is None


def test_a_chosen_rank_that_does_not_answer_stops_no_other(bench: Bench) -> None:
    bench.say({"kind": "select", "run": "r1", "rank": 3})
    bench.wait()
    before = output(bench.states)
    bench.unreachable = 3
    bench.shown = changed(bench.shown, rank_2={"line": "next"}, output={"text": "of another"})
    bench.panel.update()
    bench.wait()
    assert merged(bench.states)["use_2"]["line"] == "next"
    assert output(bench.states) == before


def test_stop_reaches_the_run_that_was_meant(bench: Bench) -> None:
    bench.say({"kind": "stop", "run": "an earlier one"})
    assert bench.stops == 0
    bench.say({"kind": "stop", "run": "r1"})
    assert bench.stops == 1
    bench.shown = changed(bench.shown, run=None)
    bench.panel.update()
    bench.wait()
    bench.say({"kind": "stop", "run": "r1"})
    assert bench.stops == 1


@pytest.mark.parametrize(
    ("error", "trouble"),
    [
        (SkyError("rank 1 does not answer."), "rank 1 does not answer."),
        (KeyError("x"), "KeyError: 'x'"),
    ],
)
def test_a_question_that_cannot_be_answered_is_not_left_waiting(
    bench: Bench, error: Exception, trouble: str
) -> None:
    def fail(question: Mapping[str, Any]) -> Mapping[str, Any]:
        raise error

    bench.answers["variables"] = fail
    cluster = bench.panel.cluster["id"]
    question = {"about": "variables"}
    bench.say({"kind": "ask", "cluster": cluster, "number": "1", "question": question})
    said = until(lambda: [each["content"] for each in bench.panel.comm.sent if "content" in each])
    assert said == [{"kind": "answer", "number": "1", "trouble": trouble}]


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "select"},
        {"kind": "select", "rank": 1},
        {"kind": "select", "run": "r1", "rank": 4},
        {"kind": "select", "run": "r1", "rank": -1},
        [1],
        "x",
    ],
)
def test_other_messages_are_ignored(bench: Bench, content: Any) -> None:
    bench.say(content)
    bench.wait()
    assert set(bench.asked) == {None}
    assert bench.stops == 0


lines = st.lists(st.sampled_from(["a", "b", "", "x" * (LONGEST + 1)]), max_size=3 * LINES)


@given(st.lists(st.tuples(lines, st.integers(0, 1)), max_size=6))
def test_however_output_changes_the_page_has_its_last_lines(
    steps: list[tuple[list[str], int]],
) -> None:
    bench = Bench(snapshot(2))
    bench.say({"kind": "select", "run": "r1", "rank": 0})
    text = ""
    for added, rank in steps:
        text = "\n".join(added) if rank else text + "\n".join(added)
        bench.shown = changed(bench.shown, output={"text": text})
        bench.panel.update()
        bench.wait()
        assert output(bench.states) == "\n".join(shortened(text))


@given(st.lists(st.sampled_from("ab")), st.lists(st.sampled_from("ab")))
def test_overlap_is_a_beginning(before: list[str], after: list[str]) -> None:
    drop, keep = overlap(before, after)
    assert before[drop : drop + keep] == after[:keep]


def test_a_flood_stays_small(bench: Bench) -> None:
    bench.say({"kind": "select", "run": "r1", "rank": 0})
    bench.shown = changed(bench.shown, output={"text": "x" * 10_000_000 + "\n" + "y\n" * 100_000})
    bench.panel.update()
    bench.wait()
    assert len(json.dumps(bench.states[-1])) < 10_000


def test_the_cost_of_sixty_four_ranks(bench: Bench) -> None:
    bench = Bench(snapshot(16, 4, "H100"))
    for number in range(64):
        bench.shown = changed(bench.shown, **{f"rank_{number}": {"utilisation": 0.5}})
        bench.panel.update()
        bench.wait()
    sizes = [len(json.dumps(state)) for state in bench.states[1:]]
    assert max(sizes) < 200
    bench.asked.clear()
    for _ in range(400):
        bench.panel.update()
        bench.wait(0.01)
    assert len(bench.asked) <= 9, "more ranks have fewer updates"


# The static view


class Tags(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.names: set[str] = set()
        self.text = ""
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.names.update(name for name, _ in attributes)

    def handle_data(self, data: str) -> None:
        self.text += data


def test_a_saved_notebook_has_html_and_text() -> None:
    shown = changed(
        snapshot(),
        run={"state": "interrupted", "progress": {**BAR, "part": 0.4}},
        rank_1={"began_empty": True},
        rank_2={"restarted": True},
    )
    assert as_text(shown).splitlines() == [
        "■ stopped after 1:23 · 40 % · ranks 0-3 of digits-3f2a, 4 local nodes · 12.4 MB sent",
        "  rank 0  node 0  CPU  running                      epoch 11: loss 0.310, accuracy 0.930",
        "  rank 1  node 1  CPU  running  began empty         epoch 11: loss 0.318, accuracy 0.926",
        "  rank 2  node 2  CPU  running  restarted, empty    epoch 11: loss 0.326, accuracy 0.922",
        "  rank 3  node 3  CPU  running                      epoch 11: loss 0.334, accuracy 0.918",
    ]
    html = Tags(as_html(shown)).text
    assert all(line.strip() in html for line in as_text(shown).splitlines())


def test_a_value_that_was_logged_once_is_seen_in_its_chart() -> None:
    curve = {"name": "loss", "rank": 0, "steps": [1], "values": [2.0]}
    shown = changed(snapshot(), curves=[curve | {"last": 2.0, "count": 1, "gaps": 0}])
    assert 'd="M97.0 40.0h6"' in as_html(shown)


def test_a_notebook_saved_in_the_middle_of_a_run_has_what_stays_true() -> None:
    shown = changed(snapshot(), run={"progress": {**BAR, "part": 0.4}, "cost": 1.37})
    began = datetime.fromtimestamp(shown["run"]["started"]).strftime("%Y-%m-%d %H:%M")
    assert as_text(shown) == (f"▸ running since {began} · ranks 0-3 of digits-3f2a, 4 local nodes")
    assert Tags(as_html(shown)).text == as_text(shown)


def test_many_ranks_take_little_room_in_a_saved_notebook() -> None:
    shown = changed(snapshot(256), run={"state": "ok"})
    assert len(as_html(shown)) < 1.1 * len(as_text(shown))


def test_what_a_rank_does_not_have_is_not_saved_with_a_notebook() -> None:
    shown = changed(
        snapshot(1),
        rank_0={"utilisation": None, "memory": None, "line": "", "gpu": 0, "seconds": 0.0},
    )
    [rank] = record_bundle(shown, is_open=False)[MIME]["snapshot"]["ranks"]
    assert rank == {"rank": 0, "node": 0, "phase": "running", "gpu": 0, "seconds": 0.0}


def test_a_cluster_that_has_just_begun() -> None:
    shown = changed(snapshot(1), run=None, ranks=[])
    assert as_text(shown) == "digits-3f2a, 1 local node: nothing has run yet"
    assert Tags(as_html(shown)).tags == {"details", "summary"}


@pytest.mark.parametrize("ending", ["ok", "error", "interrupted"])
def test_how_a_run_ended_is_said(ending: str) -> None:
    shown = changed(snapshot(), run={"state": ending})
    words = {"ok": "✓ finished", "error": "✗ failed", "interrupted": "■ stopped"}
    assert as_text(shown).startswith(f"{words[ending]} after 1:23 · ranks 0-3")


def test_nothing_from_a_rank_becomes_markup() -> None:
    shown = changed(
        snapshot(2),
        run={"state": "ok"},
        cluster={"name": HOSTILE, "provider": HOSTILE, "gpu": HOSTILE},
        nodes=[{"node": 0, "addr": HOSTILE, "gpu": HOSTILE}],
        rank_0={"line": HOSTILE},
        rank_1={"trouble": HOSTILE},
    )
    seen = Tags(as_html(shown))
    assert seen.tags == {"details", "summary", "pre"}
    assert seen.names == {"style"}
    assert "<img src=x onerror=alert(1)>" in seen.text
    for view in (as_html(shown), as_text(shown)):
        assert not set("\x00\x07\x1b\x9b\u202e\u2066") & set(view)
