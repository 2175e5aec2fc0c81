"""Clusters in real JupyterLab and Notebook 7: what a user types, sees and presses."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

from jupyter_sky.notebook.panel.strip import MIME
from tests.installed import skip_without
from tests.labextension.lab import home, lab, pages, server
from tests.notebook.panel.bench import LEGIBLE
from tests.notebook.panel.jupyter import NotebookUser, Pages, Server
from tests.notebook.panel.samples import HOSTILE
from tests.waiting import until

__all__ = ["home", "lab", "pages", "server"]

skip_without("jupyterlab", "notebook", "torch")


TRAINING = """%%sky --nodes 4
import itertools, time, torch, torch.distributed as dist
rank = dist.get_rank()
for epoch in itertools.count():
    loss = torch.tensor(2.3 / (epoch + 1) + rank / 100)
    dist.all_reduce(loss)
    print(f"epoch {epoch:>3}  loss \\x1b[36m{loss.item() / 4:.4f}\\x1b[0m of rank {rank}")
    time.sleep(0.3)"""

RICH = """%%sky
import matplotlib.pyplot as plt, pandas as pd
from tqdm.auto import tqdm
losses = [2.3 / (step + 1) for step in tqdm(range(100), desc="steps")]
figure, axes = plt.subplots(figsize=(5, 2))
axes.plot(losses)
plt.show()
pd.DataFrame({"step": range(3), "loss": losses[:3]})"""

CURVES = """%%sky --nodes 2 --plugin none
import itertools, time
import jupyter_sky as sky
for step in itertools.count():
    sky.log({"<b>rate": 1e-6}, step=step, loss=2 / (1 + step))
    time.sleep(0.2)"""

FLOOD = "%%sky\nfor number in range(200_000):\n    print('line', number)"


@pytest.fixture
def open_notebook(
    pages: Pages, server: Server, shots: Path
) -> Iterator[Callable[..., NotebookUser]]:
    """Open notebooks; their clusters end with the test, and none may have run what ranks print."""
    users: list[NotebookUser] = []

    def open_notebook(place: str, name: str, *cells: Any) -> NotebookUser:
        users.append(NotebookUser(pages, server, place, name, *cells))
        return users[-1]

    yield open_notebook
    for user in users:
        user.page.screenshot(path=shots / f"{user.notebook.stem}-end.png")
        user.close()
        assert user.alerts == []


@pytest.mark.parametrize("place", ["lab", "notebook"])
def test_a_user_follows_a_run_and_stops_it(
    open_notebook: Callable[..., NotebookUser], shots: Path, place: str
) -> None:
    user = open_notebook(place, f"training-{place}")
    user.run("%load_ext jupyter_sky")
    cell = user.start(TRAINING)
    panel = user.strip(cell)

    # What the head prints is there while the cell runs, and in the cell alone.
    cell.locator(".jp-RenderedText").get_by_text("epoch   3").wait_for()
    user.wait_for_state(cell, "Running")
    panel.get_by_role("option").nth(3).wait_for()
    assert panel.get_by_role("option").count() == 4
    assert panel.get_by_role("log").count() == 0
    user.page.screenshot(path=shots / f"{place}-running.png")

    # A click shows what another rank prints, also now.
    panel.get_by_role("option", name="rank 2,").click()
    text = panel.get_by_role("log", name="Output of rank 2")
    text.get_by_text("of rank 2").last.wait_for()
    user.page.keyboard.press("ArrowDown")
    user.page.keyboard.press("Enter")
    text = panel.get_by_role("log", name="Output of rank 3")
    text.get_by_text("of rank 3").last.wait_for()
    user.page.screenshot(path=shots / f"{place}-rank-3.png")
    assert user.is_busy(cell)
    user.page.wait_for_function(
        "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.status === 'busy'"
    )

    panel.get_by_role("button", name="Stop").click()
    cell.get_by_text("KeyboardInterrupt: ranks 0-3 stopped after").wait_for()
    user.wait_for_state(cell, "Stopped")
    after = user.run("%%sky --stdout all\nprint(rank, 'goes on at epoch', epoch >= 3)")
    for rank in range(4):
        after.get_by_text(f"{rank} │ {rank} goes on at epoch True").wait_for()

    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        panel.scroll_into_view_if_needed()
        assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}
        user.page.screenshot(path=shots / f"{place}-stopped-{theme.lower()}.png")

    # Who opens what was saved, with a kernel that knows nothing of it, sees the end of the run.
    [_, picture, *_] = next(each.outputs for each in user.saved().cells if each.source == TRAINING)
    assert picture.data.keys() == {MIME, "text/html", "text/plain"}
    assert picture.data["text/plain"].startswith("■ stopped after")
    saved = nbformat.v4.new_code_cell("", outputs=[picture])
    reader = open_notebook(place, f"saved-{place}", saved)
    strip = reader.strip(reader.page)
    reader.wait_for_state(reader.page, "Stopped")
    strip.get_by_role("option", name="rank 2,").click()
    strip.get_by_role("log").get_by_text("of rank 2").last.wait_for()
    reader.page.screenshot(path=shots / f"{place}-saved.png")


def test_output_looks_as_in_the_notebook_and_does_no_harm(
    open_notebook: Callable[..., NotebookUser], shots: Path
) -> None:
    skip_without("matplotlib")
    user = open_notebook("lab", "output")
    user.run("%load_ext jupyter_sky\n%sky up --nodes 2")
    rich = user.run(RICH)
    rich.locator(".jp-OutputArea-output img").wait_for()
    rich.locator("table.dataframe").wait_for()
    assert rich.get_by_text("steps: 100%").count() == 1
    user.page.screenshot(path=shots / "lab-rich.png")

    hostile = user.run(f"%%sky --stdout all\nprint({HOSTILE!r})\nraise ValueError({HOSTILE!r})")
    hostile.get_by_text("onerror=alert(1)").first.wait_for()
    assert hostile.locator("img, script").count() == 0
    user.page.screenshot(path=shots / "lab-hostile.png")

    # Rich output is part of the page, as that of any kernel; with `--display safe` it cannot act.
    shown = (
        "<b>bold</b><img src=x onerror='document.broken = 1'><script>document.broken = 2</script>"
    )
    display = f"from IPython.display import HTML, Javascript, display\ndisplay(HTML({shown!r}))"
    safe = user.run(f"%%sky --display safe\n{display}\nJavascript('document.broken = 3')")
    safe.locator(".jp-OutputArea-output b").wait_for()
    safe.get_by_text("application/javascript: not shown").wait_for()
    assert safe.locator(".jp-OutputArea-output img").get_attribute("src") is None
    assert user.page.evaluate("document.broken") is None

    flood = user.run(FLOOD)
    end = flood.locator("pre", has_text="not shown here")
    end.filter(has_text="line 199999").wait_for()
    assert end.count() == 1
    user.page.screenshot(path=shots / "lab-flood.png")
    assert len(flood.inner_text()) < 500_000


def test_a_background_run_is_followed_and_stopped_beside_a_busy_cell(
    open_notebook: Callable[..., NotebookUser], shots: Path
) -> None:
    user = open_notebook("lab", "background")
    user.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
    cell = user.run(
        "%%sky --nodes 2 --background\nimport itertools, time\n"
        "for step in itertools.count():\n    print('step', step)\n    time.sleep(0.3)"
    )
    shown = cell.locator(".jp-RenderedText")
    shown.get_by_text("step 5").wait_for()
    other = user.start("import time\ntime.sleep(600)")
    shown.get_by_text("step 15").wait_for()
    panel = user.strip(cell)
    user.wait_for_state(cell, "Running")
    user.page.screenshot(path=shots / "lab-background.png")
    panel.get_by_role("button", name="Stop").click()
    user.wait_for_state(cell, "Stopped")
    assert user.is_busy(other)


def test_sixty_four_ranks(open_notebook: Callable[..., NotebookUser], shots: Path) -> None:
    user = open_notebook("lab", "many")
    user.run("%load_ext jupyter_sky")
    cell = user.run(
        "%%sky --nodes 16 --procs-per-node 4 --plugin none\n"
        "import jupyter_sky as sky\nprint('I am', sky.instance_info().rank)"
    )
    cell.get_by_text("I am 0").first.wait_for()
    panel = user.strip(cell)
    panel.get_by_role("option").nth(63).wait_for()
    assert panel.get_by_role("option").count() == 64
    panel.get_by_role("option").first.click()
    user.page.keyboard.press("End")
    user.page.keyboard.press("Enter")
    panel.get_by_role("log", name="Output of rank 63").get_by_text("I am 63").wait_for()
    panel.scroll_into_view_if_needed()
    assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}
    user.page.screenshot(path=shots / "lab-many.png")


def test_curves_come_while_a_cell_runs_and_stay(
    open_notebook: Callable[..., NotebookUser], shots: Path
) -> None:
    user = open_notebook("lab", "curves")
    user.run("%load_ext jupyter_sky")
    cell = user.start(CURVES)
    charts = user.strip(cell).locator(".jsky-chart")
    charts.nth(1).wait_for()
    user.wait_for_state(cell, "Running")
    assert charts.locator(".jsky-chart-name").all_inner_texts() == ["<b>rate", "loss"]
    charts.first.locator("path").wait_for(state="attached")  # a level line has no height
    user.page.screenshot(path=shots / "curves-running.png")
    user.strip(cell).get_by_role("button", name="Stop").click()
    user.wait_for_state(cell, "Stopped")

    def lines() -> int:
        return int(charts.first.locator("path").count())

    assert lines() == 1
    user.strip(cell).get_by_role("button", name="All ranks").click()
    until(lambda: lines() == 2)
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        assert user.strip(cell).evaluate(LEGIBLE) == {"outside": [], "faint": []}
        user.page.screenshot(path=shots / f"curves-{theme.lower()}.png")
    [saved] = [each for each in user.saved().cells if each.source == CURVES]
    pages = [output.data.get("text/html", "") for output in saved.outputs if "data" in output]
    assert any("<svg" in page and "<b>rate" not in page for page in pages)
    user.load_again()
    charts = user.strip(user.cell("loss=2 / (1 + step)")).locator(".jsky-chart")
    charts.nth(1).wait_for()
    assert lines() == 1
