"""Users of JupyterLab and Notebook 7 who look at their clusters in the sidebar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labextension.sidebar import SidebarUser, end_clusters
from tests.notebook.panel.conftest import chromium, shots
from tests.notebook.panel.jupyter import Pages, Server, serve

__all__ = ["chromium", "shots"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("jupyter")) as served:
        yield served


@pytest.fixture(scope="module")
def pages(chromium: Any) -> Pages:
    return Pages(chromium)


@pytest.fixture
def open_notebook(
    pages: Pages, server: Server, shots: Path, request: pytest.FixtureRequest
) -> Iterator[Callable[..., SidebarUser]]:
    """Open notebooks with the sidebar beside them; clusters and kernels end with the test."""
    users: list[SidebarUser] = []
    failed = request.session.testsfailed

    def open_notebook(place: str, name: str) -> SidebarUser:
        users.append(SidebarUser(pages, server, place, name))
        return users[-1]

    yield open_notebook
    for user in users:
        user.page.screenshot(path=shots / f"sidebar-{user.notebook.stem}-end.png")
    end_clusters(server)
    for user in users:
        user.leave()
        if request.session.testsfailed > failed:
            pages.forget()
        assert user.alerts == []
        assert user.trouble == []
