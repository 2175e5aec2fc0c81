"""Users of JupyterLab and Notebook 7 who look at their clusters in the sidebar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.labextension.lab import home, lab, pages, server
from tests.labextension.sidebar import SidebarUser, end_clusters
from tests.notebook.panel.conftest import shots
from tests.notebook.panel.jupyter import Pages, Server

__all__ = ["home", "lab", "pages", "server", "shots"]


@pytest.fixture
def open_notebook(
    pages: Pages, server: Server, shots: Path
) -> Iterator[Callable[..., SidebarUser]]:
    """Open notebooks with the sidebar beside them; clusters and kernels end with the test."""
    users: list[SidebarUser] = []

    def open_notebook(place: str, name: str) -> SidebarUser:
        users.append(SidebarUser(pages, server, place, name))
        return users[-1]

    yield open_notebook
    for user in users:
        user.page.screenshot(path=shots / f"sidebar-{user.notebook.stem}-end.png")
    end_clusters(server)
    for user in users:
        user.leave()
        assert user.alerts == []
        assert user.trouble == []
