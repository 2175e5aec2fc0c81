"""The way to an agent: the SSH server leads to its socket, or a process beside it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from jupyter_sky.errors import ClusterLost
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.waiting import until

BRIDGE = "node.bridge"


def test_nothing_of_ours_is_between_the_server_and_an_agent(
    lab: Lab, start: Callable[..., Cells]
) -> None:
    """Such a process would cost more time for each cell than the server does itself."""
    cells = start("lab1", framework=False)
    assert cells.ask("1 + 1") == [2]
    assert lab.hosts[0].clients()
    assert not lab.hosts[0].processes(BRIDGE)


def test_where_the_server_leads_to_no_sockets_a_process_does(
    lab: Lab, start: Callable[..., Cells]
) -> None:
    host = lab.hosts[0]
    cells = start("lab1", framework=False)
    cells.run("kept = 41")
    with host.configured("AllowStreamLocalForwarding no"):
        assert cells.ask("kept + 1") == [42]
        assert host.processes(BRIDGE)
        new = start("lab1", framework=False)  # and one that has never known it otherwise
        assert new.ask("1 + 1") == [2]
    assert cells.ask("kept + 1") == [42]


@pytest.mark.parametrize("line", ["", "AllowStreamLocalForwarding no"])
def test_an_agent_that_is_gone_is_told_from_one_that_is_not_reached(
    lab: Lab, start: Callable[..., Cells], line: str
) -> None:
    host = lab.hosts[0]
    with host.configured(line):
        cells = start("lab1", framework=False)
        run = cells.start("import time; time.sleep(600)")
        for agent in until(lambda: host.processes(r"jupyter_sky\.node /")):
            agent.kill()
        with pytest.raises(ClusterLost, match="ended"):
            run.follow()
            run.values()
