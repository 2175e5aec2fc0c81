"""A user of a notebook in JupyterLab or Notebook 7: what they type, see and press."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

from tests.paths import ROOT

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}

_READY = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.status === 'idle';
}"""
_NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'


@dataclass(frozen=True)
class Server:
    """A Jupyter server whose settings are its own; its notebooks are in ``folder``."""

    address: str
    token: str
    folder: Path

    def url(self, place: str, notebook: Path) -> str:
        """Return where ``place``, ``"lab"`` or ``"notebook"``, shows a notebook."""
        path = {"lab": "lab/tree", "notebook": "notebooks"}[place]
        return f"{self.address}/{path}/{notebook.name}?token={self.token}&reset"


@contextmanager
def serve(home: Path) -> Iterator[Server]:
    """Serve notebooks from a new folder below ``home``, with the sidebar and what is behind it."""
    folder = home / "notebooks"
    folder.mkdir()
    extensions = home / "data" / "labextensions"
    extensions.mkdir(parents=True)
    (extensions / "jupyter-sky").symlink_to(ROOT / "jupyter_sky" / "labextension")
    settings = home / "settings" / "@jupyterlab" / "apputils-extension"
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text(_NO_NEWS)
    environment = {
        **os.environ,
        "HOME": str(home),
        "JUPYTER_CONFIG_DIR": str(home / "config"),
        "JUPYTER_DATA_DIR": str(home / "data"),
        "JUPYTER_PREFER_ENV_PATH": "0",  # the views of this checkout, not those of the environment
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
        "--ServerApp.jpserver_extensions=jupyter_sky.server=True",
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
        where = re.compile(r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)")
        address, token = next(found.groups() for line in lines if (found := where.search(line)))
        # Read on: a server whose messages nobody takes waits in the midst of one.
        threading.Thread(target=deque, args=(lines, 0), daemon=True).start()
        yield Server(address, token, folder)
    finally:
        process.terminate()
        process.wait(timeout=30)


class NotebookUser:
    """A user with a notebook on their screen.

    Parameters
    ----------
    browser
        Chromium.
    server
        The server.
    place
        ``"lab"`` or ``"notebook"``.
    name
        What the notebook is called.
    cells
        What it has already, below its title.
    """

    def __init__(self, browser: Any, server: Server, place: str, name: str, *cells: Any) -> None:
        self.notebook = server.folder / f"{name}.ipynb"
        title = nbformat.v4.new_markdown_cell(f"# {name}")
        made = nbformat.v4.new_notebook(cells=[title, *cells], metadata=KERNEL)
        nbformat.write(made, self.notebook)
        self.page = browser.new_page(viewport={"width": 1280, "height": 860})
        # Of a loaded machine; only a test that fails waits so long.
        self.page.set_default_timeout(100_000)
        self.alerts: list[str] = []
        self.page.on("dialog", self._answer)
        self.page.goto(server.url(place, self.notebook))
        self.page.wait_for_function(_READY)

    def _answer(self, dialog: Any) -> None:
        if dialog.type != "beforeunload":
            self.alerts.append(dialog.message)
        dialog.accept()

    @property
    def panel(self) -> Any:
        """The panel of a cluster; there is one only."""
        return self.page.get_by_role("region", name="Cluster")

    def start(self, code: str) -> Any:
        """Type a cell below the others and run it; return the cell."""
        self.page.evaluate(
            """async code => {
              const { commands, shell } = window.jupyterapp;
              const notebook = shell.currentWidget.content;
              notebook.activeCellIndex = notebook.widgets.length - 1;
              await commands.execute('notebook:insert-cell-below');
              notebook.activeCell.model.sharedModel.setSource(code);
              void commands.execute('notebook:run-cell');
            }""",
            code,
        )
        cells = self.page.locator(".jp-Cell")
        cell = cells.nth(cells.count() - 1)
        cell.evaluate("cell => cell.scrollIntoView({ block: 'end' })")
        return cell

    def run(self, code: str) -> Any:
        """Type a cell and wait until it is over; return the cell."""
        cell = self.start(code)
        cell.locator(".jp-InputPrompt", has_text=re.compile(r"\[\d+\]:")).wait_for()
        return cell

    def is_busy(self, cell: Any) -> bool:
        """Whether the cell still runs, as its prompt says."""
        return str(cell.locator(".jp-InputPrompt").inner_text()).startswith("[*]")

    def choose_theme(self, theme: str) -> None:
        """Choose a theme, ``"Light"`` or ``"Dark"``."""
        name = f"JupyterLab {theme}"
        self.page.evaluate(
            "theme => void window.jupyterapp.commands.execute('apputils:change-theme', { theme })",
            name,
        )
        self.page.locator(f"body[data-jp-theme-name='{name}']").wait_for(state="attached")
        self.page.locator("#jupyterlab-splash").wait_for(state="detached")

    def saved(self) -> Any:
        """Save the notebook and return what its file has."""
        self.page.evaluate("window.jupyterapp.commands.execute('docmanager:save')")
        return nbformat.read(self.notebook, as_version=4)

    def close(self) -> None:
        """Stop what runs, end the cluster and the kernel, and close the page."""
        self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()"
        )
        # What is sent before a cell has failed is not run.
        self.page.locator(".jp-InputPrompt", has_text="[*]").first.wait_for(state="detached")
        self.run("%sky down")
        self.page.evaluate("() => jupyterapp.shell.currentWidget.sessionContext.shutdown()")
        self.page.close()
