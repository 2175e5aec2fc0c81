"""Panels whose messages are kept, and pages in Chromium to show them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import comm
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from IPython.core.interactiveshell import InteractiveShell

from tests.lab import steady_chromium
from tests.notebook.kernels import let_go, new_shell
from tests.notebook.panel.bench import Bench, Page, Wire
from tests.notebook.panel.samples import snapshot
from tests.paths import ROOT

CHROMIUM_ARGUMENTS = ["--no-sandbox", "--disable-gpu"]

# Playwright has Chromium draw into files below /tmp, as containers have little shared memory. Where
# there is enough, no page waits for a disk that other tests keep busy.
_ON_DISK = "--disable-dev-shm-usage"
_ENOUGH = 2 * 2**30  # bytes


@pytest.fixture(autouse=True)
def wire(monkeypatch: pytest.MonkeyPatch) -> None:
    """Widgets of a test talk to a `Wire`."""
    monkeypatch.setattr(comm, "create_comm", Wire)


@pytest.fixture
def bench() -> Bench:
    return Bench(snapshot())


@pytest.fixture
def published() -> Iterator[list[dict[str, Any]]]:
    """What goes to the notebook's outputs."""
    shell = new_shell(InteractiveShell.instance)
    shell.display_pub = CapturingDisplayPublisher()
    yield shell.display_pub.outputs
    InteractiveShell.clear_instance()
    let_go(shell)


# Playwright runs an event loop in this thread for as long as it is up; other tests run theirs.
@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as started:
        yield started


@contextmanager
def browser() -> Iterator[Any]:
    """Chromium, where it is installed."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if steady_chromium.browser_path() is None:
        pytest.skip("needs Chromium: `apt-get install chromium-headless-shell` as root")
    with playwright.sync_playwright() as started:
        chromium = launch(started)
        yield chromium
        chromium.close()


def launch(playwright: Any) -> Any:
    """Start Chromium."""
    return playwright.chromium.launch(
        executable_path=steady_chromium.__file__,
        args=CHROMIUM_ARGUMENTS,
        ignore_default_args=[_ON_DISK] if _shared_memory() >= _ENOUGH else None,
    )


def _shared_memory() -> int:
    with suppress(OSError):
        return shutil.disk_usage("/dev/shm").free
    return 0


@pytest.fixture
def open_page(chromium: Any) -> Iterator[Callable[..., Page]]:
    """Open pages; whatever goes wrong on one fails the test."""
    pages: list[Page] = []

    def open_page(bench: Bench, width: int = 900, scheme: str = "light") -> Page:
        pages.append(Page(chromium, bench, width, scheme))
        return pages[-1]

    yield open_page
    for page in pages:
        page.browser.close()
        assert page.trouble == []


@pytest.fixture(scope="session")
def shots() -> Path:
    """Where screenshots go, to look at."""
    folder = ROOT / "build" / "screenshots"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
