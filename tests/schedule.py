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

LONG = {}
"""Seconds that a file takes alone, where it is more than ten: the order in which they begin."""

SHARE_NOTHING = frozenset({})
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
