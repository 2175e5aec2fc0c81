"""Each fault: the user is told what it was, the next cell runs, and nothing is left behind."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import psutil
import pytest

from tests.cluster.conftest import Cells
from tests.conftest import shared_registry
from tests.faults.catalogue import FAULTS, Fault, with_torch
from tests.faults.experience import set_up, started, suffer
from tests.faults.limits import NoControlGroups
from tests.faults.parts import agent_of, blobs_of, folder_of
from tests.node_processes import processes_of_node
from tests.waiting import PATIENCE, until


@pytest.fixture(scope="module")
def whole(workplace) -> Iterator[Callable[[Fault], Cells]]:
    """Returns a cluster to break; what breaks and is whole again is broken again."""
    shared: dict[Callable[[], Cells], Cells] = {}

    def make(fault: Fault) -> Cells:
        if fault.make is with_torch:
            if fault.make not in shared:
                shared[fault.make] = started(fault)
            return shared[fault.make]
        made = started(fault)
        alone.append(made)
        return made

    alone: list[Cells] = []
    with shared_registry(workplace):
        yield make
        for cells in [*shared.values(), *alone]:
            cells.cluster.down()


def left(cells: Cells) -> tuple[int, int, int]:
    """Count what an agent has: descriptors, processes, unfinished files in shared memory."""
    agent = agent_of(cells)
    unfinished = len(list(blobs_of(cells).glob("*.part")))
    return agent.num_fds(), len(processes_of_node(agent)), unfinished


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_the_user_is_told_and_goes_on(whole, fault: Fault) -> None:
    cells = whole(fault)
    before = left(cells)
    folders = folder_of(cells), blobs_of(cells)
    agent = agent_of(cells)
    try:
        told = suffer(cells, fault)
    except NoControlGroups:
        pytest.skip("the system's control groups cannot be changed here")
    assert re.search(fault.said, told.said), told.said
    if fault.ends:
        psutil.wait_procs([agent], timeout=PATIENCE)
        cells.cluster.down()
        assert not any(folder.exists() for folder in folders)
    elif cells.cluster.runtime_env.together:
        kept = cells.ask("globals().get('kept')")
        assert kept == [None if rank in fault.lost else rank for rank in range(len(kept))]
        set_up(cells)
        # A pipe of the rank that is gone is closed a moment after the new one has its own. Before
        # there may have been something that has gone since, as of what broke in the test before.
        until(lambda: all(now <= then for now, then in zip(left(cells), before, strict=True)))
