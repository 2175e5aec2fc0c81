"""How the sidebar looks: what fits, what stands in one line, and what has the same colour."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser
from tests.notebook.panel.bench import LEGIBLE

skip_without("jupyterlab", "notebook")

Open = Callable[..., SidebarUser]

# Where what is shown begins, from the left: of an element with text, that of the text.
LEFT = """parts => {
  const range = document.createRange();
  return parts.map((part) => {
    range.selectNodeContents(part);
    const inside = part.firstChild ? range : part;
    return Math.round(inside.getBoundingClientRect().left);
  });
}"""
# How far below the middle of each button its icon is.
OFF_CENTRE = """buttons => buttons.map((button) => {
  const [icon, whole] = [button.querySelector("svg"), button].map((part) => {
    const { top, height } = part.getBoundingClientRect();
    return top + height / 2;
  });
  return Math.round(icon - whole);
})"""
LOOK = """dot => {
  const { backgroundImage, borderColor, borderStyle } = getComputedStyle(dot);
  return [dot.dataset.phase, backgroundImage, borderColor, borderStyle];
}"""


def at_aws(route: Any) -> None:
    """Answer as if all clusters were rented, for a long time already."""
    answer = route.fetch()
    told = answer.json()
    for cluster in told["clusters"]:
        cluster.update(provider="aws", gpu="NVIDIA A100-SXM4-80GB", price=262.18, cost=12345.67)
    route.fulfill(response=answer, json=told)


def test_a_state_looks_the_same_in_strip_and_sidebar(open_notebook: Open) -> None:
    user = open_notebook("lab", "same")
    user.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
    cell = user.start(
        "%%sky --nodes 2 --cluster same\nimport time\nfrom tqdm import tqdm\n"
        "bar = tqdm(total=400, desc='all epochs')\ntime.sleep(1)\nbar.update(104)\ntime.sleep(600)"
    )
    card = user.card("same", "running")
    card.wait_for()
    strip = user.strip(cell)
    strip.locator("[data-phase='running']").first.wait_for()

    def looks() -> list[Any]:
        dots = (card.locator(".jsky-dot"), strip.locator(".jsky-cluster .jsky-dot"))
        return [dot.evaluate(LOOK) for dot in dots]

    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        of_card, of_strip = looks()
        assert of_card == of_strip
        assert of_card[0] == "running"

    # As wide as a sidebar is at first: how far a rank is has one line, with the time left.
    bar = user.opened("same").get_by_role("option").first.locator(".jsky-progress")
    bar.get_by_text(" left").wait_for()
    amount, left = bar.locator(".jsky-fact").all()
    assert left.bounding_box()["y"] == amount.bounding_box()["y"]
    assert bar.bounding_box()["height"] < 30, "a line"
    label = card.locator(".jsky-line-of-run > .jsky-progress .jsky-label")
    assert label.inner_text() == "all epochs"
    assert label.evaluate("part => part.scrollWidth <= part.clientWidth"), "of what it is, in full"

    strip.get_by_role("button", name="Stop", exact=True).click()
    # Of a run that is over, only the sidebar knows how the cluster is now.
    strip.locator(".jsky-cluster .jsky-dot").wait_for(state="hidden")


def test_many_clusters_fit_and_what_is_in_a_card_begins_at_one_line(
    open_notebook: Open, shots: Path
) -> None:
    user = open_notebook("lab", "fits-in-one-line-however-long-its-name-is")
    names = [f"an-experiment-with-a-long-name-that-ends-in-{at}" for at in range(9)]
    ups = "\n".join(f"%sky up --nodes 1 --cluster {name}" for name in names)
    user.run(f"%load_ext jupyter_sky\n%config Sky.plugin = 'none'\n{ups}")
    cards = [user.card(name, "idle") for name in names]
    for card in cards:
        card.wait_for()
    for card, name in zip(cards, names, strict=True):
        assert card.bounding_box()["height"] <= 54, "a card has two lines"
        # The end of a name is within its place, and so is the rest of it, to be pointed at.
        end, place = (
            card.locator(part).bounding_box()
            for part in (".jsky-name > .jsky-name-end", ".jsky-name")
        )
        assert end["x"] + end["width"] <= place["x"] + place["width"] + 1
        assert card.get_by_title(name, exact=True).is_visible()
    assert user.sidebar.evaluate(LEGIBLE) == {"outside": [], "faint": []}
    user.page.screenshot(path=shots / "sidebar-compact.png")

    user.page.route("**/jupyter-sky/api/clusters?*", at_aws)
    cards[0].get_by_text("an hour").wait_for()
    assert cards[0].bounding_box()["height"] <= 54, "two lines, whatever it costs"
    word = cards[0].locator(".jsky-card-state")
    assert word.inner_text() == "idle"
    assert word.bounding_box()["width"] >= 20, "what it costs leaves room for its state"
    user.page.screenshot(path=shots / "sidebar-compact-costs.png")
    user.page.unroute_all(behavior="wait")

    user.run(f"%%sky --cluster {names[3]}\nimport jupyter_sky as sky\nsky.log(step=1, loss=2.0)")
    card = user.opened(names[3])
    card.get_by_role("button", name=f"Go to {user.notebook.name}").wait_for()
    assert card.locator(".jsky-users").bounding_box()["height"] < 24, "a line"
    card.get_by_role("option").wait_for()
    card.locator(".jsky-chart-name").wait_for()
    card.get_by_text("nothing was printed").wait_for()
    view = card.locator(".jsky-card-view")
    parts = ".jsky-title, .jsky-chart-name, .jsky-rank > .jsky-number, .jsky-output-head > *"
    edges = view.locator(parts).locator("visible=true").evaluate_all(LEFT)
    icon = view.locator(".jsky-run-icon").bounding_box()["x"]
    assert {*edges, round(icon)} == {edges[0]}
    assert len(edges) == 5
    tools = card.locator(".jsky-tool").locator("visible=true")
    assert tools.count() >= 7
    assert set(tools.evaluate_all(OFF_CENTRE)) == {0}, "icons are in the middle of their buttons"
    user.page.screenshot(path=shots / "sidebar-compact-opened.png")
