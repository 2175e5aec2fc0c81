"""How tests are spread over the processes of `make test`: whole files, long ones first.

A file's tests stay in one process, where they share a cluster, a kernel or a page. In a file that
takes long and whose tests share nothing, each test goes to whichever process is free. What there
is once for each process (a registry, a lab, a stand-in of AWS) is made by the fixtures of scope
"session"; no test looks at what other processes have.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadFileScheduling

LONG = {
    "cluster/control/test_scaling.py": 580,
    "providers/aws/test_nothing_left.py": 310,
    "labextension/test_sidebar.py": 260,
    "notebook/panel/test_jupyterlab.py": 170,
    "cluster/control/test_recovery.py": 160,
    "notebook/commands/test_cli.py": 150,
    "cluster/control/test_lifecycle.py": 150,
    "providers/ssh/test_notebook.py": 130,
    "seeds/test_seeds.py": 130,
    "providers/ssh/test_broken_links.py": 120,
    "server/test_clusters.py": 110,
    "providers/aws/test_scaling.py": 100,
    "providers/aws/test_loss.py": 80,
    "notebook/test_magic_life.py": 70,
    "labextension/test_keys.py": 60,
    "providers/aws/test_dead_man.py": 70,
    "notebook/test_headless.py": 60,
    "server/test_live.py": 60,
    "providers/ssh/test_running.py": 60,
    "faults/test_catalogue.py": 60,
    "providers/ssh/test_scaling.py": 60,
    "notebook/test_magic_errors.py": 50,
    "providers/aws/test_spot.py": 50,
    "guides/test_quickstart.py": 50,
    "notebook/panel/test_browser.py": 40,
    "providers/aws/test_guide.py": 40,
    "guides/test_readme.py": 40,
    "providers/aws/test_notebook.py": 40,
    "notebook/commands/test_scale.py": 40,
    "notebook/test_attach.py": 40,
    "providers/aws/test_snapshots.py": 40,
    "providers/ssh/test_environment.py": 40,
    "notebook/test_magic_output.py": 40,
    "notebook/commands/test_commands.py": 40,
    "cluster/runs/test_bad_moments.py": 30,
    "cluster/runs/test_errors.py": 30,
    "providers/aws/test_whole_way.py": 30,
    "providers/ssh/test_upkeep.py": 30,
    "faults/test_descriptors.py": 30,
    "faults/test_kernels.py": 30,
    "analysis/test_cell_names.py": 30,
    "providers/aws/test_trouble.py": 30,
    "cluster/namespace/test_shared_objects.py": 30,
    "server/test_install.py": 30,
    "labextension/test_log.py": 30,
}
"""Seconds that a file takes, where it is half a minute or more: the order in which they begin."""

SHARE_NOTHING: frozenset[str] = frozenset()
"""Files whose tests may be in several processes at a time."""


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes there are with ``-n auto``: tests wait half of their time."""
    return min(2 * len(os.sched_getaffinity(0)), 8)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with long files, so that none is left alone at the end."""
    if hasattr(config, "workerinput"):
        items.sort(key=lambda item: -LONG.get(_file(item.nodeid), 0))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadFileScheduling:
    """Keep the tests of a file together, but for those that share nothing."""
    from xdist.scheduler import LoadFileScheduling

    class Schedule(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return nodeid if _file(nodeid) in SHARE_NOTHING else _file(nodeid)

    config.option.loadscopereorder = False  # it would begin with the files that have most tests
    return Schedule(config, log)


def _file(nodeid: str) -> str:
    return nodeid.partition("::")[0].removeprefix("tests/")
