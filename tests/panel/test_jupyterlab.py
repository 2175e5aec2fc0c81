"""The panel in real JupyterLab and Notebook 7, with a kernel that is busy."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest

pytest.importorskip("jupyterlab", reason="JupyterLab is not installed")
pytest.importorskip("notebook", reason="Notebook is not installed")

ROOT = Path(__file__).parents[2]

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
LEGIBLE = Path(__file__).with_name("legible.js").read_text()
READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""
SWITCH = "theme => window.jupyterapp.commands.execute('apputils:change-theme', { theme })"

CELL = """
import itertools, time
from jupyter_sky.notebook.panel import Panel
from tests.panel.samples import changed, snapshot

class Source:
    shown = snapshot()
    def snapshot(self, rank):
        return changed(self.shown, output={"rank": rank, "text": f"rank {rank}"})
    def on_stop(self):
        raise AssertionError("a busy kernel hears nothing from its widgets")

source = Source()
panel = Panel(source)
panel.show()
try:
    for step in itertools.count():
        source.shown = changed(source.shown, rank_1={"line": f"step {step}"})
        panel.update()
        time.sleep(0.01)
except KeyboardInterrupt:
    source.shown = changed(source.shown, run={"state": "interrupted"})
panel.finish()
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """A server whose settings are its own; its address, and the folder of its notebooks."""
    home = tmp_path_factory.mktemp("jupyter")
    folder = home / "notebooks"
    folder.mkdir()
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    news = settings / "notification.jupyterlab-settings"
    news.write_text('{"fetchNews": "false", "checkForUpdates": false}')
    environment = {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_RUNTIME_DIR": str(home / "runtime"),
        "JUPYTERLAB_SETTINGS_DIR": str(home / "settings"),
        "PYTHONPATH": str(ROOT),
    }
    options = [
        "--no-browser",
        "--allow-root",
        "--ip=127.0.0.1",
        "--port=0",
        "--LabApp.expose_app_in_browser=True",
        "--JupyterNotebookApp.expose_app_in_browser=True",
        f"--ServerApp.root_dir={folder}",
    ]
    process = subprocess.Popen(
        [sys.executable, "-m", "jupyterlab", *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr
        lines = iter(process.stderr.readline, "")
        found = (re.search(r"http://127\.0\.0\.1:\d+/lab\?token=\w+", line) for line in lines)
        address = next(match[0] for match in found if match)
        yield address, folder
    finally:
        process.terminate()
        process.communicate(timeout=30)


@pytest.mark.parametrize("place", ["lab/tree", "notebooks"])
def test_it_lives_while_the_kernel_is_busy(
    chromium: Any, server: tuple[str, Path], shots: Path, place: str
) -> None:
    address, folder = server
    name = place.partition("/")[0]
    notebook = folder / f"{name}.ipynb"
    cells = [nbformat.v4.new_code_cell(CELL)]
    nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), notebook)
    page = chromium.new_page(viewport={"width": 1300, "height": 900})
    page.goto(address.replace("/lab?", f"/{place}/{notebook.name}?reset&"))
    page.wait_for_function(READY)
    page.evaluate("() => void window.jupyterapp.commands.execute('notebook:run-all-cells')")

    panel = page.get_by_role("region", name="Cluster")
    row = panel.get_by_role("option", name="rank 1,")
    for _ in range(3):
        row.get_by_text(row.get_by_text("step ").inner_text()).wait_for(state="detached")
    page.screenshot(path=shots / f"{name}-running.png")

    panel.get_by_role("button", name="Stop").click()
    panel.get_by_text("Stopped", exact=True).wait_for()
    # The notebook has a picture now, and on this page the panel in its place. The kernel has time
    # again, so it hears which rank's output is wanted.
    row.click()
    panel.get_by_role("log", name="Output of rank 1").get_by_text("rank 1").wait_for()
    page.screenshot(path=shots / f"{name}-stopped.png")

    for theme in ("Light", "Dark"):
        page.evaluate(SWITCH, f"JupyterLab {theme}")
        page.locator(f"body[data-jp-theme-name='JupyterLab {theme}']").wait_for(state="attached")
        page.locator("#jupyterlab-splash").wait_for(state="detached")
        assert panel.evaluate(LEGIBLE) == {"outside": [], "faint": []}
        page.screenshot(path=shots / f"{name}-{theme.lower()}.png")

    page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
    page.close()
    [output] = nbformat.read(notebook, as_version=4).cells[0].outputs
    assert output.data.keys() == {"text/html", "text/plain"}
    assert "stopped after" in output.data["text/plain"]
    reopen(chromium, address, folder, output, shots / f"{name}-reopened.png")


def reopen(chromium: Any, address: str, folder: Path, output: Any, shot: Path) -> None:
    """Open what was saved with a kernel that knows nothing of it: the picture is there."""
    cell = nbformat.v4.new_code_cell("", outputs=[output])
    nbformat.write(nbformat.v4.new_notebook(cells=[cell], metadata=KERNEL), folder / "old.ipynb")
    page = chromium.new_page()
    page.goto(address.replace("/lab?", "/lab/tree/old.ipynb?reset&"))
    page.locator(".jp-OutputArea-output").get_by_text("stopped after").wait_for()
    page.screenshot(path=shot)
    page.close()
