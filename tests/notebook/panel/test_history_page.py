"""History, Variables and Profile in JupyterLab: in the strip of a cell, and in the sidebar."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import skip_without
from tests.labextension.lab import home, lab, pages, server
from tests.notebook.panel.jupyter import NotebookUser, Pages, Server
from tests.waiting import until

__all__ = ["home", "lab", "pages", "server"]

skip_without("jupyterlab")

_CELL = """%%sky --nodes 2 --cluster looked
import time, jupyter_sky as sky
step = "one" if sky.instance_info().node == 1 else 1
while True:
    time.sleep(0.05)"""

_POINTS = "path => (path.getAttribute('d').match(/[ML]/g) ?? []).length"


@pytest.fixture
def user(pages: Pages, server: Server) -> Iterator[NotebookUser]:
    user = NotebookUser(pages, server, "lab", "looking")
    yield user
    user.close()


def _unfold(view: Any) -> Any:
    """Open the history of a view and the ranks of its first node; return the row of rank 0."""
    view.get_by_role("button", name="History", exact=True).click()
    view.locator(".jsky-fold").first.click()
    row = view.locator(".jsky-history-rank").first
    row.wait_for()
    return row


def _points(row: Any) -> int:
    return int(row.locator("path").first.evaluate(_POINTS))


def test_a_user_looks_into_a_cell_that_runs(user: NotebookUser, shots: Path) -> None:
    user.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
    cell = user.start(_CELL, save=True)
    user.wait_for_state(cell, "Running")
    strip = user.strip(cell)
    row = _unfold(strip)
    # The curve grows by itself.
    before = until(lambda: _points(row))
    until(lambda: _points(row) > before)
    strip.get_by_role("button", name="Variables", exact=True).click()
    strip.get_by_role("row", name="step").first.wait_for()
    assert strip.get_by_text("differs", exact=True).count() == 2
    strip.get_by_role("button", name="Profile", exact=True).click()
    strip.locator(".jsky-profile svg rect").first.wait_for()
    assert "looked" in strip.locator(".jsky-profile b").first.inner_text()
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        strip.scroll_into_view_if_needed()
        user.page.screenshot(path=shots / f"history-lab-{theme.lower()}.png")
    seen = _points(row)

    # A page that comes later gets all of it, while the kernel is busy with the cell.
    user.page.evaluate("() => jupyterapp.commands.execute('docmanager:save')")
    user.load_again()
    cell = user.cell("step =")
    strip = user.strip(cell)
    strip.get_by_role("button", name="History", exact=True).wait_for()
    row = _unfold(strip)
    until(lambda: _points(row) >= seen)

    user.page.evaluate("() => void jupyterapp.commands.execute('jupyter-sky:show')")
    card = user.page.locator(".jsky-card")
    card.locator(".jsky-opener").click()
    row = _unfold(card)
    until(lambda: _points(row) >= seen)
    user.page.screenshot(path=shots / "history-sidebar-lab.png")
    strip.get_by_role("button", name="Stop").click()
    user.wait_for_state(cell, "Stopped")
    # What was used is no part of what the notebook keeps.
    strip.get_by_role("button", name="History", exact=True).wait_for(state="hidden")
    assert "processor" not in str(user.saved().cells[-1].outputs)
