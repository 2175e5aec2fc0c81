"""Machines end by themselves, whatever has become of the notebook."""

from __future__ import annotations

import contextlib
import threading
from signal import SIGKILL, SIGSTOP

import psutil
import pytest

from jupyter_sky.errors import ClusterLost, SkyError
from jupyter_sky.providers.aws.ec2 import bootstrap, user_data
from jupyter_sky.providers.ssh.machine import submit
from tests.lab import Host
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.machines import Machines
from tests.waiting import PATIENCE, until


def ended(machines: Machines) -> bool:
    """Wait until all machines have powered off."""
    for host in machines.hosts.values():
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(host.pid).wait(PATIENCE)
    return not any(host.is_up for host in machines.hosts.values())


def look(host: Host) -> None:
    """Wait until a machine has looked around: it sleeps between two looks."""
    pauses: set[int] = set()
    while len(pauses) < 3:
        for pause in host.processes(r"^sleep 1$"):
            pauses.add(pause.pid)
            with contextlib.suppress(psutil.NoSuchProcess):
                pause.wait(PATIENCE)


def test_machines_wait_for_installations(start: Start, machines: Machines) -> None:
    start(1, framework=False)
    [told] = machines.user_data.values()
    switch = told["bootcmd"][-1][-1]
    # However long they take: as long as the notebook that installs is there.
    assert "first=600\n" in switch
    assert "between=300\n" in switch
    [host] = machines.hosts.values()
    assert int(host.run("cat", "/run/jupyter-sky-beat")) > 0


def test_machines_hear_of_the_notebook_while_it_is_busy_with_others(
    start: Start, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bootstrap, "BEAT_EVERY", 0.1)
    done, heard = threading.Event(), set[str]()

    def say(text: object) -> None:
        if heard or not str(text).startswith("preparing"):
            return
        for _ in range(64):  # as many hosts as are prepared at once
            submit(done.wait)
        [host] = machines.hosts.values()
        try:
            until(lambda: heard.add(host.run("cat", "/run/jupyter-sky-beat")) or len(heard) > 2)
        finally:
            done.set()  # what was made is released by the same threads

    start(1, framework=False, say=say)


def test_machines_power_off_when_their_agents_are_gone_or_hang(
    start: Start, machines: Machines, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(user_data, "NEXT_AGENT_WITHIN", 2)
    # One that starts beside other tests imports for seconds, in which it waits for nothing.
    monkeypatch.setattr(user_data, "AGENT_HANGS_WITHIN", 15)
    cells = start(2, framework=False, watch_every=1)
    cells.run("here = 1")
    # One is killed, the other hangs.
    for host, number in zip(machines.hosts.values(), (SIGKILL, SIGSTOP), strict=True):
        look(host)
        for agent in host.processes(r"-m jupyter_sky\.node "):
            agent.send_signal(number)
    assert ended(machines)
    with pytest.raises(ClusterLost):
        cells.run("here = 2")


def test_machines_power_off_when_the_money_is_spent(start: Start, machines: Machines) -> None:
    # It pays for a quarter of a minute, in which the cluster may have come up or not.
    with pytest.raises(SkyError):
        cells = start(1, framework=False, watch_every=1, max_cost=0.0008)
        cells.run("import time\ntime.sleep(600)")
    assert ended(machines)
