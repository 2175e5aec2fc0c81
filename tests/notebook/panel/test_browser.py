"""The panel as a user sees and uses it: the built module in Chromium."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebook.panel.bench import LEGIBLE, Bench, Page
from tests.notebook.panel.samples import HOSTILE, changed, epochs, snapshot
from tests.paths import ROOT

Open = Callable[..., Page]

# Where a text is scrolled to, once it moves no more: a wheel scrolls it bit by bit.
SETTLED = """async (node) => {
  let before;
  while (before !== node.scrollTop) {
    before = node.scrollTop;
    await new Promise((done) => setTimeout(done, 300));
  }
  return before;
}"""

# Of facts in a line, whether a user sees them.
SEEN = """elements => elements.map((element) => {
  const [fact, line] = [element, element.parentElement].map((each) => each.getBoundingClientRect());
  if (fact.top >= line.bottom) return "left out";
  return element.scrollWidth > element.clientWidth || fact.right > line.right + 1 ? "cut" : "whole";
})"""

# What tells a state from others without its colour.
SHAPE = """dot => {
  const { backgroundImage, backgroundColor, borderColor, borderStyle, borderRadius, borderWidth } =
    getComputedStyle(dot);
  return [backgroundImage, backgroundColor === borderColor, borderStyle, borderRadius, borderWidth];
}"""

SIDEBAR_STYLE = ROOT / "labextension" / "style" / "sidebar.css"

LONG = "training epochs of the second stage"
BAR = {"label": "epochs", "part": 0.45, "count": "45/100", "left": 75.0}

FAILED = changed(
    snapshot(),
    run={"state": "error", "progress": BAR},
    **{
        f"rank_{rank}": {"outcome": "released", "phase": "idle", "seconds": 83.0}
        for rank in (0, 1, 3)
    },
    rank_2={
        "outcome": "error",
        "phase": "idle",
        "seconds": 82.4,
        "error": "ValueError: the batch has 31 rows, and 32 were expected",
    },
)

SCENES = {
    "cpu": (changed(snapshot(), run={"progress": BAR}, rank_1={"progress": BAR}), 900),
    "failed": (FAILED, 900),
    "done": (
        changed(
            snapshot(2),
            run={"state": "ok", "background": True},
            **{
                f"rank_{rank}": {"outcome": "ok", "phase": "idle", "seconds": 83.0}
                for rank in (0, 1)
            },
        ),
        900,
    ),
    "gpu": (
        changed(
            snapshot(2, 4, "A100"),
            run={"cost": 0.94, "progress": BAR},
            rank_3={"phase": "idle", "outcome": "ok", "seconds": 41.0, "utilisation": 0.0},
            rank_4={"restarted": True},
            rank_5={"phase": "gone", "trouble": "killed by signal 9", "utilisation": None},
        ),
        900,
    ),
    "many": (snapshot(16, 4, "H100"), 1000),
    "narrow": (changed(snapshot(2, 4, "A100"), run={"progress": {**BAR, "label": LONG}}), 320),
    "starting": (
        changed(
            snapshot(1),
            cluster={"phase": "starting", "note": "importing torch", "generation": 0},
            run=None,
            sent_bytes=0,
            output={"text": ""},
            rank_0={"phase": "starting", "utilisation": None, "memory": None, "line": ""},
        ),
        900,
    ),
    "hostile": (
        changed(
            snapshot(),
            cluster={"name": HOSTILE},
            run={"title": HOSTILE},
            output={"text": f"{HOSTILE}\n{'x' * 900}\n"},
            rank_1={"line": HOSTILE},
        ),
        900,
    ),
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("scene", SCENES)
def test_it_can_be_read(open_page: Open, shots: Path, scene: str, scheme: str) -> None:
    shown, width = SCENES[scene]
    page = open_page(Bench(shown), width, scheme)
    panel = page.browser.locator("#panel")
    panel.screenshot(path=shots / f"panel-{scene}-{scheme}.png")
    assert panel.get_by_role("option").count() == len(shown["ranks"])
    assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}
    amounts = panel.locator(".jsky-head .jsky-progress .jsky-fact:visible")
    assert set(amounts.evaluate_all(SEEN)) <= {"whole"}


def test_facts_without_room_are_left_out_and_not_cut(open_page: Open) -> None:
    page = open_page(Bench(changed(snapshot(2, 4, "A100"), run={"cost": 0.94, "progress": BAR})))
    facts = page.browser.locator(".jsky-line-of-run .jsky-fact:visible")
    stop = page.browser.get_by_role("button", name="Stop")
    seen = {}
    for width in range(320, 1200, 20):
        page.browser.set_viewport_size({"width": width, "height": 600})
        seen[width] = facts.evaluate_all(SEEN)
        place = stop.bounding_box()
        assert place["x"] + place["width"] <= width - 20, "Stop is never cut"
    assert not [width for width, found in seen.items() if "cut" in found]
    assert set(seen[1180]) == {"whole"}
    assert [found for found in seen.values() if "left out" in found]


def test_stop_is_beside_the_state_however_narrow_the_cell(open_page: Open) -> None:
    page = open_page(Bench(changed(snapshot(2, 4, "A100"), run={"progress": BAR})))
    line = page.browser.locator(".jsky-line-of-run")
    state, stop = line.locator(".jsky-run-state"), line.get_by_role("button", name="Stop")
    for width in range(280, 1200, 20):
        page.browser.set_viewport_size({"width": width, "height": 600})
        places = state.bounding_box(), stop.bounding_box()
        assert abs(places[0]["y"] - places[1]["y"]) < places[1]["height"], width
        assert line.bounding_box()["height"] < 5 * places[0]["height"], width


def test_the_name_of_a_cluster_has_the_room_that_is_left(open_page: Open) -> None:
    name = {"name": "experiment-on-digits-with-a-long-name"}
    page = open_page(Bench(changed(snapshot(), cluster=name, run={"state": "ok"})), width=580)
    start = page.browser.locator(".jsky-cluster .jsky-name-start")
    assert start.evaluate("start => start.scrollWidth <= start.clientWidth")
    # It takes none from how far a run is, nor Stop's.
    page = open_page(Bench(changed(snapshot(), cluster=name, run={"progress": BAR})), width=760)
    line = page.browser.locator(".jsky-line-of-run")
    assert line.locator(".jsky-label").evaluate("label => label.scrollWidth <= label.clientWidth")
    stop = line.get_by_role("button", name="Stop").bounding_box()
    assert stop["x"] + stop["width"] <= 760 + 20


def test_a_rank_that_is_not_measured_yet_says_its_state(open_page: Open) -> None:
    new = {"phase": "idle", "utilisation": None, "memory": None, "line": "hello"}
    page = open_page(Bench(changed(snapshot(1, 2), rank_1=new)), width=320)
    first, second = page.browser.get_by_role("option").all()
    assert not first.locator(".jsky-rank-state").is_visible(), "figures say more"
    assert second.locator(".jsky-rank-state").inner_text() == "idle"
    assert second.locator(".jsky-bar:visible").count() == 0


def test_the_bar_of_a_rank_gives_way_to_the_time_left(open_page: Open) -> None:
    page = open_page(Bench(changed(snapshot(1, 1), rank_0={"progress": BAR})))
    row = page.browser.locator(".jsky-rank > .jsky-progress")
    facts, bar = row.locator(".jsky-fact"), row.locator(".jsky-bar")
    widest = bar.bounding_box()["width"]
    shortened = []
    for width in range(320, 1200, 20):
        page.browser.set_viewport_size({"width": width, "height": 600})
        if 60 < bar.bounding_box()["width"] < widest:
            shortened.append(width)
            assert set(facts.evaluate_all(SEEN)) == {"whole"}, width
    assert shortened


def test_bars_of_many_ranks_stay_in_their_place_in_the_sidebar(open_page: Open) -> None:
    page = open_page(Bench(changed(snapshot(8, 8), rank_0={"progress": BAR})), width=232)
    page.browser.add_style_tag(path=SIDEBAR_STYLE)
    panel = page.browser.locator("#panel")
    panel.evaluate("node => node.classList.add('jsky-card-view')")
    rank = panel.locator(".jsky-rank").first.bounding_box()
    bars = [bar.bounding_box() for bar in panel.locator("[data-rank='0'] .jsky-bar:visible").all()]
    assert len(bars) == 2, "how busy it is, and how far"
    assert all(bar["x"] + bar["width"] <= rank["x"] + rank["width"] for bar in bars)
    assert all(bar["width"] >= 16 for bar in bars)


def test_how_far_one_of_many_ranks_is_has_the_room_of_its_output(open_page: Open) -> None:
    page = open_page(Bench(changed(snapshot(44), rank_0={"progress": BAR})))
    rank = page.browser.get_by_role("option").first
    whole = rank.bounding_box()
    busy, far = (rank.locator(f"{part} > .jsky-bar") for part in (".jsky-busy", ".jsky-progress"))
    assert far.bounding_box()["width"] > 2 * busy.bounding_box()["width"]
    assert far.bounding_box()["x"] + far.bounding_box()["width"] <= whole["x"] + whole["width"]


def test_ranks_of_many_nodes_are_seen_at_once_and_their_bars_have_names(open_page: Open) -> None:
    page = open_page(Bench(snapshot(44)))
    ranks = page.browser.get_by_role("listbox")
    assert ranks.evaluate("node => node.scrollHeight <= node.clientHeight"), "nothing to scroll"
    assert page.browser.locator(".jsky-headings").get_by_text("Utilisation").is_visible()
    # Where nodes have names of their own, these are shown.
    assert not page.browser.get_by_text("node 43", exact=True).is_visible()
    hosts = snapshot(44)
    hosts["nodes"][43]["addr"] = "10.0.3.60"
    page = open_page(Bench(hosts))
    page.browser.get_by_text("10.0.3.60", exact=True).wait_for()


def test_a_page_of_few_colours_or_of_large_text(open_page: Open) -> None:
    """As systems and pages have it for those who see little."""
    shown = changed(FAILED, rank_1={"outcome": "lost"}, rank_3={"outcome": "ok"})
    page = open_page(Bench(shown))
    page.browser.emulate_media(forced_colors="active")
    dots = page.browser.locator(".jsky-rank .jsky-dot")
    looks = {str(dots.nth(at).evaluate(SHAPE)) for at in range(4)}
    assert len(looks) == 4
    # Bars have their length, which is a colour behind no text.
    filled, empty = (
        page.browser.locator(f".jsky-head {part}").evaluate(
            "node => getComputedStyle(node).backgroundColor"
        )
        for part in (".jsky-fill", ".jsky-bar")
    )
    assert filled != empty
    page.browser.emulate_media(forced_colors="none")

    panel = page.browser.locator("#panel")
    line = panel.locator(".jsky-rank > .jsky-line").first
    before = line.bounding_box()
    panel.evaluate("node => node.style.setProperty('--jp-ui-font-size1', '26px')")
    after = line.bounding_box()
    assert after["height"] == pytest.approx(2 * before["height"], abs=1)
    assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}


def test_a_failed_rank_can_be_read_in_jupyters_colours(open_page: Open) -> None:
    """Quiet text is lighter there, and behind what is said of a failed rank is red."""
    shown, width = SCENES["failed"]
    page = open_page(Bench(shown), width, "light")
    panel = page.browser.locator("#panel")
    panel.locator(".jsky-rank[data-outcome='error'] > .jsky-seconds").wait_for()
    quiet = "rgba(0, 0, 0, 0.54)"
    panel.evaluate("(node, to) => node.style.setProperty('--jp-ui-font-color2', to)", quiet)
    assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}


def test_large_text_in_a_narrow_place_is_shortened_and_not_cut(open_page: Open) -> None:
    gpu, _ = SCENES["gpu"]
    failed, _ = SCENES["failed"]
    for shown in (changed(gpu, rank_0={"progress": BAR}), failed):
        page = open_page(Bench(shown), width=280)
        panel = page.browser.locator("#panel")
        for size in (20, 26):
            panel.evaluate(f"node => node.style.setProperty('--jp-ui-font-size1', '{size}px')")
            assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}
            right = panel.bounding_box()["x"] + panel.bounding_box()["width"]
            bars = [bar.bounding_box() for bar in panel.locator(".jsky-bar:visible").all()]
            assert all(bar["x"] + bar["width"] <= right for bar in bars), "half a bar looks full"
            run = panel.locator(".jsky-line-of-run .jsky-fact").first
            assert run.evaluate_all(SEEN) == ["whole"]


def test_it_follows_the_cluster(open_page: Open) -> None:
    bench = Bench(snapshot())
    page = open_page(bench)
    choose(page, 2)
    text = page.browser.get_by_role("log")
    for count in (40, 300):
        bench.shown = changed(
            bench.shown,
            output={"rank": 2, "text": "\n".join(epochs(count)) + "\n"},
            rank_2={"line": f"epoch {count}"},
        )
        bench.panel.update()
        bench.wait()
        page.deliver()
    assert text.inner_text().splitlines()[-1].startswith("epoch 299")
    assert text.locator("> div").count() == 199
    assert text.evaluate("node => node.scrollTop + node.clientHeight >= node.scrollHeight - 1")
    assert page.browser.get_by_role("option").nth(2).inner_text().endswith("epoch 300")


def test_a_user_scrolls_up_to_read(open_page: Open) -> None:
    lines = epochs(110)
    bench = Bench(changed(snapshot(), output={"rank": 2, "text": "\n".join(lines[:100]) + "\n"}))
    page = open_page(bench)
    choose(page, 2)
    text = page.browser.get_by_role("log")
    latest = page.browser.get_by_role("button", name="Latest")
    assert not latest.is_visible()
    text.hover()
    page.browser.mouse.wheel(0, -600)
    latest.wait_for()
    before = text.evaluate(SETTLED)
    bench.shown = changed(bench.shown, output={"text": "\n".join(lines) + "\n"})
    bench.panel.update()
    bench.wait()
    page.deliver()
    assert text.evaluate("node => node.scrollTop") == before
    latest.click()
    latest.wait_for(state="hidden")
    assert text.evaluate("node => node.scrollTop + node.clientHeight >= node.scrollHeight - 1")


def test_keyboard_and_mouse(open_page: Open) -> None:
    bench = Bench(snapshot())
    page = open_page(bench)
    page.browser.keyboard.press("Tab")
    assert page.browser.evaluate("document.activeElement.getAttribute('aria-expanded')") == "true"
    page.browser.keyboard.press("Tab")
    assert page.browser.evaluate("document.activeElement.textContent") == "Where?"
    page.browser.keyboard.press("Tab")
    assert page.browser.evaluate("document.activeElement.textContent") == "Stop"
    page.browser.keyboard.press("Tab")
    page.browser.keyboard.press("ArrowDown")
    page.browser.keyboard.press("Enter")
    page.browser.get_by_role("option", name="rank 3").click()
    page.browser.get_by_role("button", name="Stop").click()
    for content in page.browser.evaluate("window.sent"):
        bench.say(content)
    assert bench.stops == 1
    bench.wait()
    assert bench.asked[-1] == 3
    page.browser.get_by_text("use the notebook's Stop").wait_for()


def choose(page: Page, rank: int) -> None:
    """Click on a rank, of which the panel hears."""
    page.browser.get_by_role("option").nth(rank).click()
    page.bench.say(page.browser.evaluate("window.sent.at(-1)"))
    page.bench.wait()
    page.deliver()


def test_sixty_four_ranks_are_cheap(open_page: Open) -> None:
    bench = Bench(snapshot(16, 4, "H100"))
    page = open_page(bench, 1000)
    # The seconds above them are counted as they pass.
    changes = page.browser.locator("#panel .jsky-ranks").evaluate_handle(
        """panel => {
          const seen = { count: 0 };
          const count = changes => { seen.count += changes.length; };
          const everything = { attributes: true, characterData: true, childList: true };
          new MutationObserver(count).observe(panel, { subtree: true, ...everything });
          return seen;
        }"""
    )
    bench.shown = changed(bench.shown, rank_17={"line": "another"})
    bench.panel.update()
    bench.wait()
    page.deliver()
    page.browser.get_by_text("another").wait_for()
    # The line, and what a screen reader and a pointer at rest are told.
    assert changes.evaluate("seen => seen.count") == 3


PILOT = "\N{WOMAN}\N{EMOJI MODIFIER FITZPATRICK TYPE-4}\N{ZERO WIDTH JOINER}\N{AIRPLANE}"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("\N{ROCKET}" * 20, ["\N{ROCKET}" * 12, "\N{ROCKET}" * 8]),
        (f"the-notebook-of-the-{PILOT}-1.ipynb"[:-1], ["the-notebook-of-the-", f"{PILOT}-1.ipyn"]),
    ],
)
def test_a_name_is_cut_between_characters(open_page: Open, name: str, parts: list[str]) -> None:
    page = open_page(Bench(changed(snapshot(), cluster={"name": name})))
    shown = page.browser.locator(".jsky-cluster .jsky-name > span")
    assert shown.all_text_contents() == parts


def test_what_a_rank_does_hides_nothing_of_the_others(open_page: Open) -> None:
    where = "rank 0 is at `\x1b]0;a title without an end`\nrank 1 is at `step()`"
    page = open_page(Bench(changed(snapshot(), run={"where": where})))
    page.browser.locator(".jsky-where").get_by_text("rank 1 is at step()").wait_for()
