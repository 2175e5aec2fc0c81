"""A user of a notebook in JupyterLab or Notebook 7: what they type, see and press."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import nbformat

from tests.notebook.panel.bench import STILL
from tests.paths import ROOT
from tests.server.jupyter import end, said

KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}

_READY = """path => {
  const current = window.jupyterapp?.shell.currentWidget;
  const context = current?.sessionContext;
  return current?.context?.path === path && context?.isReady
    && context.session?.kernel?.status === 'idle';
}"""
# What a command returns is not for us: a notebook takes seconds to be written down.
_OPEN = "path => void window.jupyterapp.commands.execute('docmanager:open', { path })"
_CLOSE_ALL = "() => [...jupyterapp.shell.widgets('main')].forEach(widget => widget.dispose())"
# What was open in a page that was loaded again comes back, and would be in front of the next one.
_RESTORED = "async () => { await jupyterapp.restored; }"
CONNECTED = """() => {
  const context = window.jupyterapp?.shell.currentWidget?.sessionContext;
  return context?.isReady && context.session?.kernel?.connectionStatus === 'connected';
}"""
# The kernel runs nothing that is sent between an error of a cell and the end of that cell.
_TAKES_CELLS = """() => {
  const { content, sessionContext } = window.jupyterapp.shell.currentWidget;
  const cells = content.widgets.filter(cell => cell.model.type === 'code');
  const failed = cells.filter(cell =>
    cell.model.outputs.toJSON().some(output => output.output_type === 'error'));
  const running = cells.filter(cell => cell.promptNode?.textContent.startsWith('[*]'));
  return !failed.some(cell => running.includes(cell))
    && (!failed.length || running.length > 0 || sessionContext.session.kernel.status === 'idle');
}"""
_NO_NEWS = '{"fetchNews": "false", "checkForUpdates": false}'
# Each page asks whether JupyterLab has to be built again: the server would start Node.js for it.
_NO_BUILD_CHECK = '{"buildCheck": false}'


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
    pages = home / "config" / "labconfig"
    pages.mkdir(parents=True)
    (pages / "page_config.json").write_text(_NO_BUILD_CHECK)
    environment = {
        **os.environ,
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
        [sys.executable, "-m", "tests.lab.kernel_ports", "jupyterlab", *options],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        address, token = said(process, r"(http://127\.0\.0\.1:\d+)/lab\?token=(\w+)")
        yield Server(address, token, folder)
    finally:
        end(process)


@dataclass
class Pages:
    """The pages of a browser, all of one size.

    JupyterLab in a page is used again, for one notebook after the other: to load it takes longer
    than most of what is done there.
    """

    browser: Any
    width: int = 1280
    height: int = 860
    sharpness: float = 1  # pixels of a screenshot for each of the page
    _loaded: list[Any] = field(default_factory=list)
    _loaded_again: set[Any] = field(default_factory=set)

    def open(self, server: Server, place: str, notebook: Path) -> Any:
        """Return a page that shows a notebook whose kernel is ready."""
        if place == "lab" and self._loaded:
            page = self._loaded.pop()
            page.evaluate(_OPEN, notebook.name)
        else:
            page = self.browser.new_page(
                viewport=self._size, device_scale_factor=self.sharpness, **STILL
            )
            # Of a loaded machine; only a test that fails waits so long.
            page.set_default_timeout(100_000)
            page.goto(server.url(place, notebook))
        page.wait_for_function(_READY, arg=notebook.name)
        return page

    def put_back(self, page: Any) -> None:
        """Close what a page shows; it is for another notebook, if JupyterLab is in it.

        One that was loaded again may open its own notebook later than that, over the other one.
        """
        if "/lab" not in page.url or page in self._loaded_again:
            self._loaded_again.discard(page)
            page.close()
            return
        page.unroute_all(behavior="ignoreErrors")  # of what is answered just now
        while page.locator(".jp-Dialog").count():  # that a kernel has died, perhaps
            page.keyboard.press("Escape")
        page.evaluate(_RESTORED)
        page.evaluate(_CLOSE_ALL)
        page.set_viewport_size(self._size)
        self._loaded.append(page)

    def load_again(self, page: Any, url: str = "") -> None:
        """Load a page again, or from another address."""
        self._loaded_again.add(page)
        if url:
            page.goto(url)
        else:
            page.reload()

    def forget(self) -> None:
        """Close the pages that would be used again: nobody knows what a test left that failed."""
        while self._loaded:
            self._loaded.pop().close()

    @property
    def _size(self) -> dict[str, int]:
        return {"width": self.width, "height": self.height}


class NotebookUser:
    """A user with a notebook on their screen.

    Parameters
    ----------
    pages
        Where the notebook is shown.
    server
        The server.
    place
        ``"lab"`` or ``"notebook"``.
    name
        What the notebook is called.
    cells
        What it has already, below its title.
    """

    def __init__(self, pages: Pages, server: Server, place: str, name: str, *cells: Any) -> None:
        self.notebook = server.folder / f"{name}.ipynb"
        title = nbformat.v4.new_markdown_cell(f"# {name}")
        made = nbformat.v4.new_notebook(cells=[title, *cells], metadata=KERNEL)
        nbformat.write(made, self.notebook)
        self.alerts: list[str] = []
        self._pages = pages
        self.page = pages.open(server, place, self.notebook)
        self.page.on("dialog", self._answer)

    def _answer(self, dialog: Any) -> None:
        if dialog.type != "beforeunload":
            self.alerts.append(dialog.message)
        dialog.accept()

    def strip(self, cell: Any) -> Any:
        """The strip above the output of a cell."""
        return cell.get_by_role("group", name="Run on cluster")

    def wait_for_state(self, cell: Any, word: str) -> None:
        """Wait until the strip of a cell says this of its run."""
        self.strip(cell).locator(".jsky-run-state").get_by_text(word, exact=True).wait_for()

    def cell(self, text: str) -> Any:
        """The cell with this text in its code."""
        return self.page.locator(".jp-CodeCell", has_text=text).first

    def load_again(self, url: str = "") -> None:
        """Load the page again, or go there: the notebook is as it was saved; its kernel goes on."""
        self._pages.load_again(self.page, url)
        self.page.wait_for_function(CONNECTED)

    def restart_kernel(self) -> None:
        """Restart the kernel, as the button in the toolbar does after it was confirmed."""
        self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.restart()"
        )

    def start(self, code: str, save: bool = False) -> Any:
        """Type a cell below the others, save it perhaps, and run it; return the cell."""
        self.page.wait_for_function(_TAKES_CELLS)
        self.page.evaluate(
            """async ([code, save]) => {
              const { commands, shell } = window.jupyterapp;
              const notebook = shell.currentWidget.content;
              notebook.activeCellIndex = notebook.widgets.length - 1;
              await commands.execute('notebook:insert-cell-below');
              notebook.activeCell.model.sharedModel.setSource(code);
              if (save) {
                await shell.currentWidget.context.save();
              }
              void commands.execute('notebook:run-cell');
            }""",
            [code, save],
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
        """Stop what runs, end the cluster and the kernel, and close the notebook."""
        self.page.evaluate(
            "() => jupyterapp.shell.currentWidget.sessionContext.session.kernel.interrupt()"
        )
        self.page.locator(".jp-InputPrompt", has_text="[*]").first.wait_for(state="detached")
        self.run("%sky down")
        self._leave()

    def _leave(self) -> None:
        """End the kernel and close the notebook."""
        self.page.evaluate(
            "() => jupyterapp.shell.currentWidget?.sessionContext?.shutdown?.()",
        )
        self.page.remove_listener("dialog", self._answer)
        self._pages.put_back(self.page)
