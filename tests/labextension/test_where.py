"""Where ranks hang, in a real JupyterLab: in the strip by itself, and when the user asks."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from tests.installed import skip_without
from tests.labextension.sidebar import SidebarUser
from tests.notebook.panel.bench import LEGIBLE

skip_without("jupyterlab", "notebook")

HANG = """%%sky --nodes 2 --cluster hangs --hang-after 2s
import time
import torch
import torch.distributed as dist

def step(gradient):
    if dist.get_rank() == 1:
        time.sleep(600)
    dist.all_reduce(gradient)

step(torch.ones(1024, 64))"""


def test_a_user_sees_where_a_cell_hangs(
    open_notebook: Callable[..., SidebarUser], shots: Path
) -> None:
    user = open_notebook("lab", "where")
    user.run("%load_ext jupyter_sky")
    cell = user.start(HANG)
    said = re.compile(
        r"rank 0 waits in all_reduce #\d+ \(cell \[\d+\], line 9\) for [\d hmins]+; "
        r"rank 1 is at time.sleep\(600\) \(cell \[\d+\], line 8\)"
    )
    # By itself, in the strip, and there alone.
    strip = user.strip(cell)
    strip.locator(".jsky-where").get_by_text(said).wait_for()
    assert len(said.findall(cell.inner_text())) == 1
    strip.get_by_role("button", name="Where?").click()
    stack = re.compile(r"rank 0\s+all_reduce #\d+, float32 \[1024, 64\], of ranks 0-1")
    strip.locator(".jsky-where").get_by_text(stack).wait_for()
    card = user.opened("hangs")
    card.get_by_role("button", name="Show what each rank is doing").click()
    dialog = user.page.get_by_role("dialog")
    dialog.get_by_text(stack).wait_for()
    assert f"\n{dialog.locator('.jsky-code').first.inner_text()}" not in dialog.inner_text()
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        user.page.screenshot(path=shots / f"where-dialog-{theme.lower()}.png")
    assert user.flaws(".jp-Dialog") == []
    dialog.get_by_role("button", name="Close").click()
    # The run is in its cell and in its cluster's card.
    assert user.flaws(".jsky-sidebar, .jsky-cell-strip") == []
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        user.page.screenshot(path=shots / f"where-{theme.lower()}.png")
        assert strip.evaluate(LEGIBLE) == {"outside": [], "faint": []}
    strip.get_by_role("button", name="Stop", exact=True).click()
    cell.get_by_text(re.compile("Before that, rank 0 waited in all_reduce")).first.wait_for()
