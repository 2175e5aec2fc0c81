"""The log of a cluster in a tab of JupyterLab."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser
from tests.notebook.panel.bench import LEGIBLE

skip_without("jupyterlab")

Open = Callable[..., SidebarUser]

CLUSTERS = re.compile(r"/jupyter-sky/api/clusters(\?|$)")

LOAD = "%load_ext jupyter_sky\n%config Sky.plugin = 'none'\n%sky up --nodes 3 --cluster logs"

RUNS = [
    "%%sky\nimport jupyter_sky as sky, sys\nrank = sky.instance_info().rank\nprint('set up', rank)",
    "%%sky\n# train the model\nfor epoch in range(3):\n"
    "    print(f'\\x1b[1mepoch {epoch}\\x1b[0m of rank {rank}', flush=True)\n"
    "print('a warning of', rank, file=sys.stderr)",
]


def without_snapshots(route: Any) -> None:
    """Let the page list clusters whose kernels have not told of their ranks yet."""
    answer = route.fetch()
    listed = answer.json()
    for cluster in listed["clusters"]:
        cluster["snapshot"] = None
    route.fulfill(response=answer, json=listed)


def test_a_log_to_work_with(open_notebook: Open, shots: Path) -> None:
    user = open_notebook("lab", "logs")
    page = user.page
    page.route(CLUSTERS, without_snapshots)
    user.run(LOAD)
    for cell in RUNS:
        user.run(cell)
    user.opened("logs").get_by_role("button", name="Open the log").click()

    # One rank: runs are set apart by title and time.
    log = page.get_by_role("log", name="Log of rank 0")
    log.get_by_text("epoch 2 of rank 0").wait_for()
    log.get_by_text("a warning of 0").wait_for()
    titles = log.locator(".jsky-log-title").all_inner_texts()
    assert titles == ["print('set up', rank)", "train the model"]
    assert log.locator("[data-stream=stderr]").all_inner_texts() == ["a warning of 0"]

    # All ranks, also those that are heard of later, merged in order, and searched.
    which = page.get_by_role("textbox", name="Ranks, like")
    which.fill("all")
    page.keyboard.press("Enter")
    page.unroute_all(behavior="wait")
    log = page.get_by_role("log", name="Log of ranks 0-2")
    for rank in range(3):
        log.get_by_text(f"epoch 2 of rank {rank}").wait_for()
    page.get_by_role("searchbox", name="Search the log").fill("rank 1")
    page.keyboard.press("Enter")
    page.get_by_text("1 of 3", exact=True).wait_for()
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        assert page.locator(".jsky-log").evaluate(LEGIBLE) == {"outside": [], "faint": []}
        assert user.flaws(".jsky-log") == []
        page.screenshot(path=shots / f"log-merged-{theme.lower()}.png")

    # Side by side, live.
    page.get_by_role("combobox", name="How several ranks are shown").select_option("side by side")
    page.get_by_role("log", name="Log of rank 2").get_by_text("a warning of 2").wait_for()
    page.evaluate("() => jupyterapp.shell.activateById('jupyter-sky-sidebar')")
    page.screenshot(path=shots / "log-beside.png")
    with page.expect_download() as saved:
        which.fill("1")
        page.keyboard.press("Enter")
        page.get_by_role("button", name="Save the whole log").click()
    assert saved.value.suggested_filename == "logs-1.log"
    assert "epoch 2\x1b[0m of rank 1" in Path(saved.value.path()).read_text()
    page.set_viewport_size({"width": 620, "height": 700})
    page.screenshot(path=shots / "log-narrow.png")
