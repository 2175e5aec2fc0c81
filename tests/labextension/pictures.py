"""The pictures of the README, of a real JupyterLab with a real cluster at work.

``make pictures``, or ``python -m tests.labextension.pictures [FOLDER]``.
"""

from __future__ import annotations

import io
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import nbformat
from PIL import Image
from playwright.sync_api import sync_playwright

from tests.labextension.sidebar import SidebarUser, end_clusters
from tests.notebook.panel.conftest import launch
from tests.notebook.panel.jupyter import Pages, serve
from tests.paths import ROOT

FOLDER = ROOT / "labextension" / "pictures"
LOOK = {"width": 1360, "height": 830, "sharpness": 1.5}
SIDEBAR = 345  # pixels

PREPARE = """\
%load_ext jupyter_sky
import torch
from sklearn.datasets import load_digits
from torch.utils.data import TensorDataset

x, y = load_digits(return_X_y=True)
digits = TensorDataset(torch.tensor(x / 16, dtype=torch.float32), torch.tensor(y))
layers = torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 10)
network = torch.nn.Sequential(*layers)"""
TRAIN = """\
%%sky --nodes 4 --out model
# Train a classifier of digits
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler
from tqdm import tqdm

model = DDP(network)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
sampler = DistributedSampler(digits)
print(f"rank {torch.distributed.get_rank()} trains on {len(sampler)} images")

for epoch in (bar := tqdm(range(300), ncols=80)):
    sampler.set_epoch(epoch)
    for images, labels in DataLoader(digits, batch_size=32, sampler=sampler):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
    bar.set_postfix(loss=f"{loss.item():.3f}")"""


def main(folder: Path) -> None:
    """Make the pictures, in the light theme and in the dark one."""
    folder.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as home, sync_playwright() as playwright:
        # What clusters and kernels keep is not mixed with that of whoever makes the pictures.
        os.environ["JUPYTER_SKY_HOME"] = str(Path(home) / "sky")
        with serve(Path(home)) as server, launch(playwright) as browser:
            cells = [nbformat.v4.new_code_cell(PREPARE), nbformat.v4.new_code_cell(TRAIN)]
            user = SidebarUser(Pages(browser, **LOOK), server, "lab", "digits", *cells)
            try:
                picture_run(user, folder)
            finally:
                user.page.evaluate(
                    "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()"
                )
                end_clusters(server)
                user.leave()


def picture_run(user: SidebarUser, folder: Path) -> None:
    """Run the cells, and take a picture in each theme while the last one is at work."""
    page = user.page
    widen_sidebar(page, SIDEBAR)
    page.evaluate(
        """async () => {
          const { commands, shell } = jupyterapp;
          shell.currentWidget.content.activeCellIndex = 1;
          await commands.execute('notebook:run-cell-and-select-next');
          void commands.execute('notebook:run-cell');
        }"""
    )
    card = user.card("digits")
    card.get_by_role("button", expanded=False).click()
    cell = user.cell("%%sky --nodes 4")
    bar = user.strip(cell).locator(".jsky-line-of-run .jsky-figure")
    bar.get_by_text(" left").wait_for()
    user.strip(cell).locator("[data-rank='2']").click()
    bar.get_by_text(re.compile("^1[0-9]{2}/300")).wait_for()
    for theme in ("Light", "Dark"):
        user.choose_theme(theme)
        cell.evaluate("cell => cell.scrollIntoView({ block: 'start' })")
        page.mouse.move(0, LOOK["height"] - 1)
        page.evaluate("() => document.activeElement.blur()")
        shown = page.screenshot(animations="disabled")
        save(shown, folder / f"{theme.lower()}.png")


def widen_sidebar(page: Any, width: int) -> None:
    """Drag the edge of the sidebar."""
    region = page.get_by_role("region", name="Clusters").bounding_box()
    edge = region["x"] + region["width"] + 2
    page.mouse.move(edge, 400)
    page.mouse.down()
    page.mouse.move(region["x"] + width, 400, steps=5)
    page.mouse.up()


def save(shown: bytes, path: Path) -> None:
    """Save a picture with 256 colours, which is a third of the size and looks the same."""
    picture = Image.open(io.BytesIO(shown)).convert("RGB")
    picture.quantize(256, dither=Image.Dither.NONE).save(path, optimize=True)
    print(f"{path}: {path.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
