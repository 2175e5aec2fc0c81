"""What a page asks of a cluster: its last minutes, its variables, a profile; in Chromium."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.snapshot import History, NodeHistory, Snapshot, Variables
from jupyter_sky.errors import SkyError
from jupyter_sky.transport.protocol.inspection import RankHistory
from tests.notebook.panel.bench import LEGIBLE, Bench, Page
from tests.notebook.panel.samples import changed, snapshot
from tests.waiting import until

Open = Callable[..., Page]

SAMPLES = 120
TENSOR = ["batches", "torch.Tensor", "[512, 4096]", "bfloat16", "cuda:0", "360 kB"]
MODEL = ["classifier_of_digits", "torch.nn.modules.container.Sequential", "1,102,000 parameters"]
MODEL += ["float32", "cpu", "4.41 MB"]

SCENES: dict[str, tuple[Snapshot, int]] = {
    "2": (snapshot(2), 900),
    "8": (changed(snapshot(2, 4, "A100"), rank_5={"phase": "gone", "outcome": "lost"}), 900),
    "64": (snapshot(16, 4, "H100"), 1000),
    "sidebar": (snapshot(2, 4, "A100"), 320),
}


def history(shown: Snapshot, since: int = 0) -> History:
    """Ten minutes of a cluster, of which the ranks are busy now and then."""
    has_gpu = shown["cluster"]["gpu"] is not None
    times = [1_763_000_000_000 + 5000 * at for at in range(since, SAMPLES)]
    nodes: list[NodeHistory] = []
    for node in shown["nodes"]:
        ranks: list[RankHistory] = []
        for rank in (each["rank"] for each in shown["ranks"] if each["node"] == node["node"]):
            busy = [abs(math.sin(at / 15 + rank)) for at in range(since, SAMPLES)]
            ranks.append(
                {
                    "rank": rank,
                    "processor": [round(1.2 * each, 2) for each in busy],
                    "memory": [int(4e9 + 2e9 * each) for each in busy],
                    "gpu": [round(each, 2) for each in busy] if has_gpu else [],
                    "gpu_memory": [int(6e10 * each) for each in busy] if has_gpu else [],
                    "gpu_total": int(8e10) if has_gpu else None,
                }
            )
        total = [sum(each["processor"][at] or 0 for each in ranks) for at in range(len(times))]
        nodes.append(
            {
                "node": node["node"],
                "times": times,
                "processors": 16,
                "memory_total": int(64e9),
                "processor": [round(each + 0.3, 2) for each in total],
                "memory": [int(2e10 + 1e9 * at % 7e9) for at in range(len(times))],
                "network": [int(2e8 * abs(math.sin(at / 9))) for at in range(len(times))],
                "ranks": ranks,
            }
        )
    return {"at": SAMPLES, "nodes": nodes}


def press(page: Page, name: str) -> None:
    """Press a button, and have the kernel answer what the page asks because of that."""
    page.browser.get_by_role("button", name=name, exact=True).first.click()
    answer(page)


def answer(page: Page) -> None:
    """Have the kernel answer the page's last question."""
    message = page.browser.evaluate("window.sent.at(-1)")
    heard = len(answers(page.bench))
    page.bench.say(message)
    until(lambda: len(answers(page.bench)) > heard)
    page.browser.evaluate("content => window.hear(content)", answers(page.bench)[-1])


def answers(bench: Bench) -> list[dict[str, Any]]:
    """What the panel has answered."""
    return [each["content"] for each in bench.panel.comm.sent if each.get("method") == "custom"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scene", SCENES)
def test_ten_minutes_can_be_read(open_page: Open, shots: Path, scene: str, scheme: str) -> None:
    shown, width = SCENES[scene]
    bench = Bench(shown)
    bench.answers["history"] = lambda question: history(shown, question["since"])  # type: ignore[assignment,return-value]
    page = open_page(bench, width, scheme)
    press(page, "History")
    rows = page.browser.locator(".jsky-history-node")
    rows.first.wait_for()
    assert rows.count() == len(shown["nodes"])
    # By the keyboard, as with the mouse.
    folds = page.browser.locator(".jsky-history").get_by_role("button")
    assert folds.nth(1).get_attribute("aria-expanded") == "false"
    folds.nth(1).focus()
    page.browser.keyboard.press("Enter")
    assert folds.nth(1).get_attribute("aria-expanded") == "true"
    own = [rank for rank in shown["ranks"] if rank["node"] == 1]
    assert page.browser.locator(".jsky-history-rank").count() == len(own)
    panel = page.browser.locator("#panel")
    panel.screenshot(path=shots / f"history-{scene}-{scheme}.png")
    assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_variables_and_profile_can_be_read(open_page: Open, shots: Path, scheme: str) -> None:
    bench = Bench(snapshot())
    bench.answers["variables"] = variables
    bench.answers["profile"] = profile
    page = open_page(bench, 900, scheme)
    press(page, "Variables")
    page.browser.get_by_role("row", name="step int").first.wait_for()
    assert page.browser.get_by_text("differs", exact=True).count() == 2
    press(page, "Profile")
    page.browser.get_by_text("looked at 4 ranks").wait_for()
    panel = page.browser.locator("#panel")
    panel.screenshot(path=shots / f"more-{scheme}.png")
    # Text in boxes of a picture has a background of its own.
    found = panel.evaluate(LEGIBLE)
    assert found["outside"] == []
    # In a narrow place the table has fewer columns, and the last one is seen all the same; long
    # types and names take some lines more.
    place = panel.locator(".jsky-variables-place")
    for width in (840, 560, 340, 260):
        page.browser.set_viewport_size({"width": width, "height": 900})
        assert place.evaluate("place => place.scrollWidth <= place.clientWidth"), width
        heights = [row.bounding_box()["height"] for row in place.locator("tbody tr").all()]
        assert max(heights) < 100, width


def test_what_is_said_of_many_variables_is_seen_below_them(open_page: Open) -> None:
    bench = Bench(snapshot())
    many = variables({})
    many["rows"] *= 10
    bench.answers["variables"] = lambda question: many
    page = open_page(bench, 260)
    press(page, "Variables")
    note = page.browser.get_by_text("values were not compared", exact=False).last.bounding_box()
    again = page.browser.get_by_role("button", name="Ask again").bounding_box()
    table = page.browser.locator(".jsky-variables-place").bounding_box()
    assert table["y"] + table["height"] <= note["y"]
    assert note["y"] + note["height"] <= again["y"]
    # Where there is little room, names are not cut in the middle of a word.
    name = page.browser.locator(".jsky-variables tbody th").first
    assert name.locator("wbr").count() == name.inner_text().count("_") + 1


def variables(question: Mapping[str, Any]) -> Variables:
    """What `%sky vars` has as well."""
    return {
        "head": ["name", "type", "shape", "dtype", "device", "size", "ranks"],
        "rows": [
            {"cells": [*TENSOR, "alike, values not compared"], "differs": False},
            {"cells": [*MODEL, "alike, values not compared"], "differs": False},
            {"cells": ["step", "int", "", "", "", "", "0, 2-3"], "differs": True},
            {"cells": ["step", "str", "", "", "", "", "1"], "differs": True},
        ],
        "notes": ["a run is going on: values were not compared"],
    }


def profile(question: Mapping[str, Any]) -> dict[str, str]:
    """A picture with what pictures have."""
    box = (
        '<svg x="20.00%" y="0" width="48%" height="17"><title>60 % compute</title>'
        '<rect width="100%" height="100%" rx="2" fill="#f4b26a"/>'
        '<text x="4" y="12" fill="#1a1a1a" font-size="11">60 % compute</text></svg>'
    )
    words = '<text x="0%" y="12" fill="currentColor" font-size="11">all ranks</text>'
    svg = f'<svg role="img" width="100%" height="36">{words}{box}</svg>'
    return {"html": f"<div><b>pair: looked at 4 ranks for 10 s</b>{svg}</div>"}


def test_what_cannot_be_answered_is_said(open_page: Open) -> None:
    def refuse(question: Mapping[str, Any]) -> dict[str, Any]:
        raise SkyError("pair: nothing is running")

    bench = Bench(snapshot())
    bench.answers["profile"] = refuse
    page = open_page(bench)
    press(page, "Profile")
    page.browser.get_by_text("pair: nothing is running").wait_for()
    # Of another cluster, a question is for another panel.
    said = len(answers(bench))
    message = page.browser.evaluate("window.sent.at(-1)")
    bench.say({**message, "cluster": "another"})
    bench.say({"kind": "ask", "cluster": 1, "question": None})
    bench.say(message)
    until(lambda: len(answers(bench)) > said)
    assert len(answers(bench)) == said + 1


def test_sixty_four_ranks_are_drawn_in_no_time(open_page: Open) -> None:
    shown = snapshot(16, 4, "H100")
    bench = Bench(shown)
    bench.answers["history"] = lambda question: history(shown, question["since"])  # type: ignore[assignment,return-value]
    page = open_page(bench, 1000)
    press(page, "History")
    page.browser.locator(".jsky-history-node").first.wait_for()
    # Nothing of it is drawn while the ranks are folded away, and ranks only where a node is open.
    assert page.browser.locator(".jsky-more path").count() == 16 * 5
    page.browser.get_by_role("button", name=re.compile("^Running")).click()
    assert not page.browser.locator(".jsky-history").is_visible()
