"""A JupyterLab in Chromium for files that follow each other: each test leaves nothing there."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.labextension.together import once
from tests.notebook.panel.conftest import browser
from tests.notebook.panel.jupyter import Pages, Server, serve


class Lab(NamedTuple):
    """Where notebooks are shown."""

    server: Server
    pages: Pages


@pytest.fixture(scope="module", autouse=True)
def home(workplace: Path) -> Iterator[None]:
    """The server and its kernels have one registry for as long as they are there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_SKY_HOME", str(workplace / "pages"))
        yield


@pytest.fixture(scope="module")
def lab(home: None) -> Lab:
    return once(_start)


@pytest.fixture(scope="module")
def server(lab: Lab) -> Server:
    return lab.server


@pytest.fixture
def pages(lab: Lab, request: pytest.FixtureRequest) -> Iterator[Pages]:
    failed = request.session.testsfailed
    yield lab.pages
    if request.session.testsfailed > failed:
        lab.pages.forget()


@contextmanager
def _start() -> Iterator[Lab]:
    with (
        tempfile.TemporaryDirectory(prefix="sky-lab-") as folder,
        serve(Path(folder)) as server,
        browser() as chromium,
    ):
        yield Lab(server, Pages(chromium))
