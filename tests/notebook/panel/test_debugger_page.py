"""The debugger in JupyterLab: its prompt is in the cell, and the strip says who waits for whom."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.installed import skip_without
from tests.labextension.lab import home, lab, pages, server
from tests.notebook.panel.jupyter import NotebookUser, Pages, Server

__all__ = ["home", "lab", "pages", "server"]

skip_without("jupyterlab")

_CELL = """%%sky --nodes 3
import torch, torch.distributed as dist
rank = dist.get_rank()
def step(number):
    share = number / 3
    if rank == 1:
        breakpoint()
    return share
loss = step(rank + 1)
dist.barrier()
print("loss", round(loss, 2))"""


@pytest.fixture
def user(pages: Pages, server: Server) -> Iterator[NotebookUser]:
    user = NotebookUser(pages, server, "lab", "debugging")
    yield user
    user.close()


def _box(cell: Any) -> Any:
    """The box for an answer; JupyterLab leaves that of the question before for a moment."""
    return cell.locator(
        ".jp-OutputArea-stdin-item:not(.jp-OutputArea-stdin-hiding) .jp-Stdin-input"
    )


def _answer(cell: Any, text: str, shown: str) -> None:
    """Answer the question of a cell, and wait for what comes of it."""
    box = _box(cell)
    box.fill(text)
    box.press("Enter")
    cell.get_by_text(shown).first.wait_for()


def test_a_user_looks_around_and_goes_on(user: NotebookUser, shots: Path) -> None:
    user.run("%load_ext jupyter_sky")
    cell = user.start(_CELL)
    cell.locator(".jp-Stdin-prompt", has_text="(rank 1)").wait_for()
    asked = (
        r"ranks 0, 2 wait in barrier .*; rank 1 is at the debugger's prompt \(cell \[2\], line "
        rf"{7 if sys.version_info >= (3, 13) else 8}\)"  # the call itself, or what is next
    )
    user.strip(cell).get_by_text(re.compile(asked)).wait_for()
    _answer(cell, "p share, number", "(0.6666666666666666, 2)")
    user.page.screenshot(path=shots / "debugger-prompt.png")
    _answer(cell, "c", "loss 0.33")
    user.wait_for_state(cell, "Finished")

    stopped = user.start("%%sky --ranks 0\nword = __import__('getpass').getpass('word? ')")
    stopped.locator(".jp-Stdin-prompt", has_text="word?").wait_for()
    assert _box(stopped).get_attribute("type") == "password"
    user.strip(stopped).get_by_role("button", name="Stop").click()
    stopped.get_by_text("KeyboardInterrupt: rank 0 stopped after").wait_for()
    # The box is gone with the run: before that JupyterLab would run no other cell.
    _box(stopped).wait_for(state="detached")

    user.run("%%sky --ranks 2\ndef deep(value):\n    return 1 / value\ndeep(0)")
    after = user.start("%debug")
    after.locator(".jp-Stdin-prompt", has_text="(Pdb)").wait_for()
    _answer(after, "w", "-> deep(0)")
    _answer(after, "p value + 7", "7")
    for theme in ("Dark", "Light"):
        user.choose_theme(theme)
        after.scroll_into_view_if_needed()
        user.page.screenshot(path=shots / f"debugger-after-{theme.lower()}.png")
    box = _box(after)
    box.fill("q")
    box.press("Enter")
    user.wait_for_state(after, "Finished")
