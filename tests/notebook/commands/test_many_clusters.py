"""A registry with hundreds of clusters: what is said of it can be read."""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from tests.notebook.commands.test_cli import sky
from tests.notebook.conftest import Notebook


@pytest.fixture(autouse=True)
def _many(own_registry: None) -> None:
    for number in range(200):
        row = {"nodes": 1, "procs_per_node": None}
        registry.record(f"{number:08x}", f"c{number:03}", "local", row)


def test_a_sentence_names_the_first_ones(notebook: Notebook) -> None:
    with pytest.raises(UsageError) as refused:
        notebook.run("%sky attach train")
    assert str(refused.value) == (
        "there is no cluster train to attach: there are c000, c001, c002, c003, c004, c005, c006, "
        "c007 and 192 more."
    )
    assert "(c000, c001, c002, c003, c004, c005, c006, c007 and 192 more)" in sky("down").err
