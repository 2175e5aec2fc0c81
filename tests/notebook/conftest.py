"""A shell in this process and kernels in others, for tests that type cells into them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from IPython.utils.capture import capture_output
from jupyter_client.manager import start_new_kernel

from jupyter_sky.cluster.inventory import registry
from tests.conftest import shared_registry
from tests.notebook.kernels import PATIENCE, LiveNotebook, let_go, new_shell
from tests.paths import ROOT


class Notebook:
    """A shell with the extension, whose clusters have no framework and so come up at once."""

    def __init__(self) -> None:
        self.shell = new_shell()
        self.namespace: dict[str, Any] = self.shell.user_ns
        self.stderr = ""  # of the last cell
        self.run("%load_ext jupyter_sky")
        self.run("%config Sky.plugin = 'none'")

    def run(self, cell: str) -> str:
        """Run a cell as the user does; return what it printed, or raise what it raised."""
        with capture_output(display=False) as captured:
            result = self.shell.run_cell(cell, store_history=True)
        self.stderr = str(captured.stderr)
        if not result.success:
            captured.show()  # in the report of a test that fails by this
        result.raise_error()
        return str(captured.stdout)

    def close(self) -> None:
        self.run("%sky auto off")
        for row in registry.rows():
            if row.machines:
                self.run(f"%sky down {row.name}")
        self.run("%unload_ext jupyter_sky")
        let_go(self.shell)


@pytest.fixture
def notebook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Notebook]:
    # A new shell takes the place of the main module.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = Notebook()
    yield made
    made.close()


@pytest.fixture(scope="module")
def shared_shell(workplace: Path, home: Path) -> Iterator[Notebook]:
    """One shell, with its clusters, for all tests of a file that take it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "__main__", sys.modules["__main__"])
        made = Notebook()
        yield made
        made.close()


@dataclass
class Kernel:
    """A kernel of its own process."""

    manager: Any
    client: Any
    messages: list[dict[str, Any]] = field(default_factory=list)

    def run(self, cell: str, **options: Any) -> str:
        """Run a cell and return what it printed; fail where it fails."""
        self.messages = []
        reply = self.client.execute_interactive(
            cell, output_hook=self.messages.append, timeout=PATIENCE, **options
        )["content"]
        assert reply["status"] == "ok", "\n".join(reply["traceback"])
        return self.text

    @property
    def text(self) -> str:
        """What the last cell printed."""
        contents = [each["content"] for each in self.messages if each["msg_type"] == "stream"]
        return "".join(content["text"] for content in contents)


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    manager, client = start_new_kernel(startup_timeout=PATIENCE)
    made = Kernel(manager, client)
    try:
        made.run("%load_ext jupyter_sky\n%config Sky.plugin = 'none'")
        yield made
    finally:
        made.client.execute_interactive("%sky auto off\n%sky down", timeout=PATIENCE)
        client.stop_channels()
        manager.shutdown_kernel(now=True)


@pytest.fixture(scope="session", autouse=True)
def checkout() -> Iterator[None]:
    """Let kernels import this checkout, wherever they run and whatever is installed."""
    root = str(ROOT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", root, prepend=os.pathsep)
        yield


@pytest.fixture
def opened(tmp_path: Path) -> Iterator[Callable[..., LiveNotebook]]:
    """Open notebooks of a name; their kernels and clusters end with the test."""
    notebooks: list[LiveNotebook] = []

    def open_notebook(name: str = "notebook", **env: str) -> LiveNotebook:
        notebook = LiveNotebook(tmp_path / f"{name}.ipynb", **env)
        notebooks.append(notebook)
        notebook.succeed("%load_ext jupyter_sky")
        return notebook

    yield open_notebook
    for notebook in notebooks:
        notebook.close()


@pytest.fixture
def others(opened: Callable[..., LiveNotebook], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let kernels that others start be of a notebook whose cluster ends with the test."""
    monkeypatch.setenv("JPY_SESSION_NAME", str(opened("others").path))


@pytest.fixture(scope="session")
def shared_pair(
    tmp_path_factory: pytest.TempPathFactory, workplace: Path, checkout: None
) -> Iterator[LiveNotebook]:
    """A notebook with a cluster of two nodes."""
    with shared_registry(workplace):
        notebook = LiveNotebook(tmp_path_factory.mktemp("pair") / "pair.ipynb")
    try:
        notebook.succeed("%load_ext jupyter_sky\n%sky up --nodes 2")
        yield notebook
    finally:
        notebook.close()


@pytest.fixture(scope="module")
def pair(shared_pair: LiveNotebook) -> LiveNotebook:
    """A notebook with a cluster of two nodes, for tests that leave both as they were.

    Names that tests of another file have made are gone, in the notebook and on the ranks.
    """
    shared_pair.succeed("%reset -f\n%sky restart")
    shared_pair.succeed(
        "%%sky\nimport os, time, torch, torch.distributed as dist\nrank = dist.get_rank()"
    )
    return shared_pair
