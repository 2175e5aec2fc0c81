"""Links that break: runs go on, nothing is missed, and what is lost is named."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import jupyter_sky as sky
from jupyter_sky.errors import NoConnection
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.waiting import until


def counting(stop: Path) -> str:
    """Return a cell that prints numbers until a file is there, which all hosts see."""
    return (
        "import os, time\nn = 0\n"
        f"while not os.path.exists({str(stop)!r}):\n"
        "    print(n, flush=True)\n    n += 1\n    time.sleep(0.1)\n"
    )


class Followed:
    """A run that is followed in a thread, so that a test can do something to its cluster."""

    def __init__(self, cells: Cells, code: str, **options) -> None:
        self.notices: list[str] = []
        self.printed = b""
        self.run = cells.start(code, **options)
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()

    def _follow(self) -> None:
        self.run.follow(self._show, notice=self.notices.append)

    def _show(self, event) -> None:
        self.printed += event.data

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until something is so; the test's time-out bounds it."""
        while not condition():
            assert self._thread.is_alive(), (self.notices, self.printed[-500:])
            time.sleep(0.02)

    def values(self):
        self._thread.join()
        return self.run.values()

    @property
    def numbers(self) -> list[int]:
        """What a cell of `counting` has printed."""
        return [int(line) for line in self.printed.decode().split()]


def test_a_run_goes_on_while_the_notebook_has_no_network(lab: Lab, start, tmp_path: Path) -> None:
    cells = start("lab1,lab2")
    cells.run("import torch, torch.distributed as dist")
    code = counting(tmp_path / "stop") + "x = torch.ones(1)\ndist.all_reduce(x)"
    followed = Followed(cells, code, values={0: ["n"]})
    followed.until(lambda: 5 in followed.numbers)
    lab.unplug()
    try:
        followed.until(lambda: followed.notices)
        assert "no connection to " in followed.notices[0]
        until(lambda: "no connection to " in cells.cluster.snapshot()["cluster"]["note"])
        seen = followed.numbers
    finally:
        lab.plug_in()
    followed.until(lambda: "again after" in followed.notices[-1])
    (tmp_path / "stop").touch()
    [count] = followed.values()[0].values()
    assert followed.numbers == list(range(count))
    assert len(seen) < count
    until(lambda: cells.cluster.snapshot()["cluster"]["note"] == "")  # the other host's too
    assert cells.ask("dist.get_world_size()") == [2, 2]


def test_a_run_that_ends_while_there_is_no_connection_took_as_long_as_it_did(
    lab: Lab, start, tmp_path: Path
) -> None:
    cells = start("lab1,lab2", framework=False)
    code = f"import time\nbegan = time.monotonic()\n{counting(tmp_path / 'stop')}"
    followed = Followed(cells, f"{code}took = time.monotonic() - began", values={0: ["took"]})
    followed.until(lambda: 5 in followed.numbers)
    lab.unplug()
    try:
        (tmp_path / "stop").touch()
        unplugged = time.monotonic()
        followed.until(lambda: followed.notices)
        without = time.monotonic() - unplugged
    finally:
        lab.plug_in()
    [took] = followed.values()[0].values()
    shown = cells.cluster.snapshot()["run"]["seconds"]
    assert took <= shown < took + without / 2
    assert followed.run.seconds < took + without / 2


def test_the_ssh_server_is_restarted(lab: Lab, client: Path, start, tmp_path: Path) -> None:
    cells = start("lab1,lab2", framework=False)
    followed = Followed(cells, counting(tmp_path / "stop"), values={0: ["n"]})
    followed.until(lambda: 5 in followed.numbers)
    for host in lab.hosts[:2]:
        host.restart_sshd()
    seen = len(followed.numbers)
    followed.until(lambda: seen + 5 in followed.numbers)
    (tmp_path / "stop").touch()
    [count] = followed.values()[0].values()
    assert followed.numbers == list(range(count))
    # What is asked for while there is no link is done as soon as there is one.
    for host in lab.hosts[:2]:
        host.restart_sshd()
    assert cells.ask("n >= 5") == [True, True]
    # One that may be somebody else is told with what only the user can do.
    known = (client / "known_hosts").read_text()
    host, other = lab.hosts[:2]
    public_key = (other.folder / "etc" / "host_key.pub").read_text()
    (client / "known_hosts").write_text(f"{host.address} {public_key}")
    host.restart_sshd()
    until(lambda: "its host key has changed" in cells.cluster.snapshot()["cluster"]["note"])
    assert "`!ssh-keygen -R" in cells.cluster.snapshot()["cluster"]["note"]
    (client / "known_hosts").write_text(known)
    assert cells.ask("n >= 5") == [True, True]


def test_a_cable_that_is_out_for_a_moment_is_not_worth_a_word(
    lab: Lab, start, tmp_path: Path
) -> None:
    cells = start("lab1,lab2", framework=False)
    followed = Followed(cells, counting(tmp_path / "stop"))
    followed.until(lambda: 5 in followed.numbers)
    lab.hosts[1].cut()
    followed.until(lambda: 12 in followed.numbers)
    lab.hosts[1].mend()
    followed.until(lambda: 20 in followed.numbers)
    (tmp_path / "stop").touch()
    followed.values()
    assert followed.notices == []


def test_data_goes_on_where_it_broke_off(lab: Lab, start) -> None:
    cells = start("lab1", framework=False)
    data = np.random.default_rng(0).integers(0, 255, 60_000_000, np.uint8)
    cells.namespace["data"] = data
    before = cells.cluster.sent_bytes
    lab.hosts[0].slow_down(200)
    try:
        followed = Followed(cells, "total = int(data.sum())", names=["data"], values={0: ["total"]})
        followed.until(lambda: cells.cluster.sent_bytes - before > 55_000_000)
        lab.hosts[0].restart_sshd()
        assert followed.values() == {0: {"total": int(data.sum())}}
    finally:
        lab.hosts[0].speed_up()
    # What was in buffers on the way has to be sent again, not more.
    assert cells.cluster.sent_bytes - before < 1.5 * data.nbytes


IN_A_COLLECTIVE = "while True: dist.all_reduce(torch.ones(1))"
ASLEEP = "while True: time.sleep(0.1)"


@pytest.mark.parametrize(
    ("victim", "busy"), [(0, IN_A_COLLECTIVE), (1, ASLEEP)], ids=["head", "other"]
)
def test_a_node_that_nobody_reaches_is_named_and_the_others_do_not_wait(
    lab: Lab, start, victim: int, busy: str
) -> None:
    cells = start("lab1,lab2,lab3", framework=busy == IN_A_COLLECTIVE)
    cells.run("import time" + ", torch, torch.distributed as dist" * (busy == IN_A_COLLECTIVE))
    code = f"print('here', flush=True)\n{busy}"
    followed = Followed(cells, code, show=[2])
    followed.until(lambda: followed.printed)
    host = lab.hosts[victim]
    host.power_off()
    try:
        gone = f"rank {victim} on {host.name} could not be reached for .*, neither by this"
        with pytest.raises(NoConnection, match=gone):
            followed.values()
        assert f"no connection to {host.name}" in followed.notices[0]
        assert cells.cluster.down() == [host.name]
        others = [each for each in lab.hosts[:3] if each is not host]
        assert not any(each.processes("jupyter_sky") for each in others)
    finally:
        host.start()
        # What the lost agent had is removed when its host answers again, also while that is in use.
        start(host.name, framework=False)
    until(lambda: len(host.agent_folders()) == 1)


def test_an_agent_that_was_killed(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    followed = Followed(cells, "import time\nprint('here', flush=True)\ntime.sleep(600)")
    followed.until(lambda: followed.printed)
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    with pytest.raises(sky.ClusterLost, match="the agent of rank 1 on lab2 ended"):
        followed.values()


def test_nodes_that_do_not_reach_each_other_are_named(lab: Lab, start) -> None:
    lab.hosts[1].block(lab.hosts[2])
    try:
        with pytest.raises(sky.SkyError) as caught:
            start("lab1,lab2,lab3", framework=False)
    finally:
        lab.hosts[1].speed_up()
    said = str(caught.value)
    assert "lab3 does not reach lab2 at 10.213." in said
    assert "lab1 does not" not in said
    assert "Allow TCP on all ports between them" in said
    assert said.endswith(", or choose another network with `%config Sky.interface`.")
    assert not any(host.processes("jupyter_sky") for host in lab.hosts)


def test_a_firewall_that_passes_agents_alone_is_found_before_ranks_wait(lab: Lab, start) -> None:
    host, other = lab.hosts[:2]
    there = host.listening()

    def close(text: object) -> None:
        # Agents listen by now, and no rank does.
        if text == "checking the network":
            [agent] = {port for address, port in host.listening() - there}
            passing = ["-m", "multiport", "!", "--dports", f"22,{agent}"]
            first = ["-s", other.address, "-p", "tcp", "--syn", *passing]
            host.run("iptables", "-A", "INPUT", *first, "-j", "DROP")

    try:
        with pytest.raises(sky.SkyError) as caught:
            start("lab1,lab2,lab3", framework=False, progress=close)
    finally:
        host.speed_up()
    said = str(caught.value)
    assert f"lab2 does not reach lab1 at {host.address} (no answer, as when a firewall" in said
    assert "lab1 does not" not in said
    assert "lab3" not in said
    assert not any(host.processes("jupyter_sky") for host in lab.hosts)


def test_a_network_that_loses_large_packets_is_found(lab: Lab, start) -> None:
    host = lab.hosts[1]
    large = ["-p", "tcp", "-m", "length", "--length", "1000:65535", "-j", "DROP"]
    for other in (lab.hosts[0], lab.hosts[2]):
        host.run("iptables", "-A", "INPUT", "-s", other.address, *large)
    try:
        with pytest.raises(sky.SkyError, match="lab1, lab3 do not reach lab2 at .* another MTU"):
            start("lab1,lab2,lab3", framework=False)
    finally:
        host.speed_up()
