"""Keys belong to the user: the shortcuts of the page work wherever the focus is, and so do ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nbformat
import pytest

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser

skip_without("jupyterlab", "notebook")

Open = Callable[..., SidebarUser]

LOAD = "%load_ext jupyter_sky\n%config Sky.plugin = 'none'"

IS_SAVED = "() => !jupyterapp.shell.currentWidget.context.model.dirty"


@pytest.mark.parametrize("place", ["lab", "notebook"])
def test_the_pages_shortcuts_work_where_a_rank_is_selected(open_notebook: Open, place: str) -> None:
    user = open_notebook(place, f"keys-{place}")
    user.run(f"{LOAD}\n%sky up --nodes 3 --cluster keys-{place}")
    strip = user.strip(user.run("%%sky\nimport time\nprint('here')\ntime.sleep(0.5)"))
    user.run("%%sky\nprint('another')")  # a screen reader tells their strips apart
    card = user.opened(f"keys-{place}")
    for where, view in ((".jp-Notebook .jsky", strip), (".jsky-sidebar", card)):
        assert user.flaws(where) == []
        view.get_by_role("option", name="rank 1,").click()
        assert _saves(user, f"saved in {view}")

        # The arrows move, Enter and the space bar choose, Escape closes and leaves.
        user.page.keyboard.press("ArrowDown")
        assert _focused(user).startswith("rank 2,")
        user.page.keyboard.press("Enter")
        view.get_by_role("log", name="Output of rank 2").wait_for()
        user.page.keyboard.press("Home")
        assert _focused(user).startswith("rank 0,")
        user.page.keyboard.press("Space")
        view.get_by_role("log", name="Output of rank 0").wait_for()
        cells = user.cells()
        if view is strip:
            user.page.keyboard.press("Escape")
            view.get_by_role("log").wait_for(state="hidden")
        user.page.keyboard.press("Escape")
        assert not _focused(user).startswith("rank ")
        assert user.cells() == cells
    assert _focused(user) == f"keys-{place}"


def _saves(user: SidebarUser, text: str) -> bool:
    """Change the notebook, press Ctrl+S, and return whether the file has the change."""
    user.page.evaluate(
        "text => void jupyterapp.shell.currentWidget.content.model.sharedModel.addCell("
        "{ cell_type: 'raw', source: text })",
        text,
    )
    user.page.keyboard.press("Control+s")
    user.page.wait_for_function(IS_SAVED)
    saved: Any = nbformat.read(user.notebook, as_version=4)
    return any(cell.source == text for cell in saved.cells)


def _focused(user: SidebarUser) -> str:
    """What a screen reader calls the element that has the focus."""
    return str(
        user.page.evaluate(
            "() => document.activeElement.getAttribute('aria-label')"
            " ?? document.activeElement.textContent"
        )
    )
