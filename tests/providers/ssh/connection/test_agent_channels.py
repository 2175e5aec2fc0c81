"""The way to an agent: the SSH server leads to its socket, or a process beside it does."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import ClusterLost
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.ssh.connection.connection import pool
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.machine import SSHMachine
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
    lab.hosts[0].power_off()
    lab.hosts[0].start()
    with pytest.raises(ClusterLost, match=r"lab1 ended: its machine was started again \d+ s ago"):
        cells.ask("1 + 1")


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


LISTEN = """
import os, pathlib, socket, sys
place = pathlib.Path(sys.argv[1])
os.setgid(6002); os.setuid(6002)
place.parent.mkdir(parents=True)
listener = socket.socket(socket.AF_UNIX)
listener.bind(str(place))
listener.listen()
place.chmod(0o777)
print("listening", flush=True)
while True:
    print(listener.accept()[0].recv(1000), flush=True)
"""


def test_who_made_the_folder_of_an_agent_anew_is_told_nothing(
    lab: Lab, start: Callable[..., Cells]
) -> None:
    """As another user can after a reboot of the host, who has seen the name before."""
    host = lab.hosts[0]
    cells = start("lab1", framework=False)
    row = registry.find(cells.cluster.name)
    assert row is not None
    machine = SSHMachine.from_row(row.machines[0])
    own, kept = Path(machine.folder).parent, host.folder / "kept"
    cells.cluster.close()
    pool.get(parse_one("lab1")).close()
    own.rename(kept)
    try:
        words = [sys.executable, "-I", "-c", LISTEN, f"{machine.folder}/agent.sock"]
        with subprocess.Popen(words, stdout=subprocess.PIPE) as other:
            try:
                assert other.stdout
                assert other.stdout.readline() == b"listening\n"
                with pytest.raises(AgentGone, match="a program of another user listens there"):
                    asyncio.run(machine.open())
                assert other.stdout.readline() == b"b''\n"
            finally:
                other.kill()
    finally:
        shutil.rmtree(own)
        kept.rename(own)
    asyncio.run(machine.open()).close()
