"""People in JupyterLab and Notebook 7 who look at their clusters in the sidebar."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.labextension.sidebar import Looker, end_clusters
from tests.notebook.panel.conftest import chromium, shots
from tests.notebook.panel.jupyter import Server, serve

__all__ = ["chromium", "shots"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serve(tmp_path_factory.mktemp("jupyter")) as served:
        yield served


@pytest.fixture
def open_notebook(chromium: Any, server: Server, shots: Path) -> Iterator[Callable[..., Looker]]:
    """Open notebooks with the sidebar beside them; clusters and kernels end with the test."""
    people: list[Looker] = []

    def open_notebook(place: str, name: str) -> Looker:
        people.append(Looker(chromium, server, place, name))
        return people[-1]

    yield open_notebook
    for person in people:
        person.page.screenshot(path=shots / f"sidebar-{person.notebook.stem}-end.png")
    end_clusters(server)
    for person in people:
        person.leave()
        assert person.alerts == []
        assert person.trouble == []
