"""Users of JupyterLab and Notebook 7 who look at their clusters in the sidebar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labextension.sidebar import SidebarUser, end_clusters
from tests.notebook.panel.conftest import chromium, shots
from tests.notebook.panel.jupyter import Server, serve

__all__ = ["chromium", "shots"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("jupyter")) as served:
        yield served


@pytest.fixture
def open_notebook(
    chromium: Any, server: Server, shots: Path
) -> Iterator[Callable[..., SidebarUser]]:
    """Open notebooks with the sidebar beside them; clusters and kernels end with the test."""
    users: list[SidebarUser] = []

    def open_notebook(place: str, name: str) -> SidebarUser:
        users.append(SidebarUser(chromium, server, place, name))
        return users[-1]

    yield open_notebook
    for user in users:
        user.page.screenshot(path=shots / f"sidebar-{user.notebook.stem}-end.png")
    end_clusters(server)
    for user in users:
        user.leave()
        assert user.alerts == []
        assert user.trouble == []
