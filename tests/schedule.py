"""How tests are spread over the processes of `make test`: whole files, long ones first.

A file's tests stay in one process, where they share a cluster, a kernel or a page; some files
follow each other there, and share a JupyterLab in a browser (`tests/labextension/together.py`).
What there is once for each process (a registry, a lab, a stand-in of AWS) is made by the fixtures
of scope "session"; no test looks at what other processes have.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from xdist.scheduler import LoadScopeScheduling

LONG = (
    "notebook/panel/test_jupyterlab.py",
    "providers/aws/calls/test_calls.py",
    "providers/ssh/test_notebook.py",
    "seeds/test_seeds.py",
    "providers/ssh/test_broken_links.py",
    "providers/ssh/test_unreachable.py",
    "guides/test_frameworks.py",
    "providers/slurm/test_life.py",
    "providers/slurm/test_own_homes.py",
    "providers/aws/test_spot.py",
    "providers/aws/stops/test_power.py",
    "plugins/test_dask.py",
    "providers/ssh/test_patience.py",
    "notebook/debugger/test_link_cut.py",
    "notebook/commands/test_cli.py",
    "server/test_clusters.py",
    "providers/aws/test_loss.py",
    "faults/test_scenes.py",
    "providers/aws/test_scaling.py",
    "cluster/control/test_scaling.py",
    "providers/ssh/test_running.py",
    "cluster/runs/test_checkpoints.py",
    "plugins/test_frameworks.py",
    "providers/aws/test_notebook.py",
    "providers/aws/stops/test_in_the_sidebar.py",
    "providers/aws/stops/test_in_a_notebook.py",
    "providers/aws/company/test_regions.py",
    "providers/aws/company/test_sessions.py",
    "providers/aws/access/test_new_address.py",
    "providers/aws/test_dead_man.py",
    "notebook/scripts/test_torchrun.py",
    "chance/test_chance.py",
    "providers/ssh/setup/test_environment.py",
    "providers/ssh/setup/test_like_here.py",
    "notebook/scripts/test_over_ssh.py",
    "notebook/test_magic_errors.py",
    "notebook/programs/test_run.py",
    "notebook/test_retry.py",
    "notebook/project/test_volumes_over_ssh.py",
    "notebook/project/test_volumes.py",
    "node/volumes/test_keeper.py",
    "providers/aws/money/test_denied.py",
    "providers/ssh/test_data.py",
    "cluster/control/test_lifecycle.py",
    "guides/test_readme.py",
    "notebook/test_magic_life.py",
    "faults/test_catalogue.py",
    "guides/test_grid_search.py",
    "notebook/test_attach.py",
    "providers/aws/test_guide.py",
    "providers/aws/company/test_choices.py",
    "providers/aws/test_snapshots.py",
    "notebook/project/test_pip.py",
    "guides/test_a_project.py",
    "guides/test_quickstart.py",
    "cluster/test_trust.py",
    "notebook/test_headless.py",
    "notebook/commands/test_shell.py",
    "gpu/nvml/test_stand_in.py",
    "providers/slurm/test_work.py",
    "providers/slurm/test_environments.py",
    "providers/slurm/test_notebook.py",
    "providers/slurm/test_login.py",
    "providers/slurm/test_accounts.py",
)
"""The files that take more than half a minute, the longest first: none is left alone at the end."""

TOGETHER = (
    (
        "notebook/panel/test_jupyterlab.py",
        "notebook/panel/test_history_page.py",
        "notebook/panel/test_debugger_page.py",
        "notebook/panel/test_dashboard.py",
        "labextension/test_sidebar.py",
        "labextension/test_cells.py",
        "labextension/test_keys.py",
        "labextension/test_log.py",
        "labextension/test_where.py",
        "labextension/test_looks.py",
    ),
)
"""Files that run one after the other, in one process: they share what takes seconds to start."""


def group(test: str) -> str:
    """Return what tests have in common that run in one process: a file, or the first of several."""
    file = test.partition("::")[0].removeprefix("tests/")
    return next((files[0] for files in TOGETHER if file in files), file)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return how many processes there are with ``-n auto``: tests mostly wait.

    More of them take each other's caches and memory: a process comes to 1 GB, beside its ranks.
    """
    return min(5 * len(os.sched_getaffinity(0)) // 2, 8)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Begin with the long files; among others the order stays as it is."""
    if hasattr(config, "workerinput"):
        places = {file: place for place, file in enumerate(LONG)}
        items.sort(key=lambda item: places.get(group(item.nodeid), len(LONG)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    """Keep the tests of a file together, and files that share something."""
    from xdist.scheduler import LoadScopeScheduling

    class LoadGroups(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return group(nodeid)

    config.option.loadscopereorder = False  # it would begin with the files that have most tests
    return LoadGroups(config, log)
