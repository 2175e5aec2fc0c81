"""How tests are spread over the processes of `make test`: whole files, long ones first.

A file's tests stay in one process, where they share a cluster, a kernel or a page. What there is
once for each process (a registry, a lab, a stand-in of AWS) is made by the fixtures of scope
"session"; no test looks at what other processes have.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

LONG = (
    "labextension/test_sidebar.py",
    "seeds/test_seeds.py",
    "notebook/panel/test_jupyterlab.py",
    "providers/aws/test_nothing_left.py",
    "chance/test_chance.py",
    "providers/ssh/test_patience.py",
    "providers/ssh/test_notebook.py",
    "plugins/test_frameworks.py",
    "providers/ssh/test_running.py",
    "labextension/test_cells.py",
    "cluster/control/test_scaling.py",
    "providers/ssh/test_broken_links.py",
    "plugins/test_dask.py",
    "server/test_clusters.py",
    "cluster/control/test_recovery.py",
    "notebook/commands/test_cli.py",
    "cluster/control/test_lifecycle.py",
    "providers/aws/test_scaling.py",
    "providers/aws/test_loss.py",
    "providers/aws/test_dead_man.py",
    "notebook/scripts/test_torchrun.py",
    "notebook/test_magic_life.py",
    "labextension/test_keys.py",
    "notebook/test_headless.py",
    "server/test_live.py",
    "providers/ssh/test_unreachable.py",
    "providers/ssh/test_connecting.py",
    "faults/test_scenes.py",
    "faults/test_catalogue.py",
    "providers/ssh/test_scaling.py",
    "notebook/test_config.py",
    "guides/test_frameworks.py",
    "guides/test_large_models.py",
    "cluster/runs/test_sharded.py",
    "notebook/test_magic_errors.py",
    "guides/test_working_with_cells.py",
    "notebook/scripts/test_terminal.py",
    "providers/aws/test_spot.py",
)
"""The files that take more than half a minute, the longest first: none is left alone at the end."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes there are with ``-n auto``: tests wait half of their time."""
    return min(2 * len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files; among others the order stays as it is."""
    if hasattr(config, "workerinput"):
        places = {file: place for place, file in enumerate(LONG)}
        items.sort(key=lambda item: places.get(_file(item), len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Keep the tests of a file together."""
    from xdist.scheduler import LoadFileScheduling

    config.option.loadscopereorder = False  # it would begin with the files that have most tests
    return LoadFileScheduling(config, log)


def _file(item: pytest.Item) -> str:
    return item.nodeid.partition("::")[0].removeprefix("tests/")
