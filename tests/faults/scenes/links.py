"""Links between nodes, and to the notebook: cut, slow, lossy, and flapping.

The hosts have two networks. Nodes talk to each other over the second, which can break while the
notebook reaches all of them over the first.
"""

from __future__ import annotations

import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.provider import SSH
from tests.cluster.conftest import Cells
from tests.faults.catalogue import PROOF
from tests.faults.experience import Experience
from tests.faults.other_kernel import COUNTING
from tests.faults.scenes.scene import HostScene, feel, feel_during
from tests.lab import Host, Lab
from tests.lab.host import command

_COLLECTIVES = (
    "import torch, torch.distributed as dist\nfor n in range(10**9):\n"
    "    dist.all_reduce(torch.ones(1))\n"
    "    if n % 100 == 0: print(n, flush=True)"
)


@contextmanager
def cluster_on_two_networks(lab: Lab) -> Iterator[Cells]:
    """Have a cluster on the first two hosts; its nodes talk to each other over the second."""
    lab.add_network()
    try:
        provider = SSH(["lab1", "lab2"], python=sys.executable, interface="eth1")
        wanted = ClusterSpec(name=f"links-{uuid.uuid4().hex[:8]}", nodes=2)
        spec, runtime_env = assemble(wanted, [sky.plugins.torch()])
        timeouts = Timeouts(stop=5)
        cells = Cells(Cluster.start(spec, provider, runtime_env, timeouts=timeouts))
        try:
            cells.run(PROOF)
            yield cells
        finally:
            cells.cluster.down()
    finally:
        lab.remove_network()


# The network between nodes


def _wire(host: Host) -> str:
    return f"{host.wire}b"


def _cut(lab: Lab) -> None:
    command(["ip", "link", "set", _wire(lab.hosts[1]), "down"])


def _mend(lab: Lab) -> None:
    command(["ip", "link", "set", _wire(lab.hosts[1]), "up"])


def _nodes_cut(lab: Lab, cells: Cells) -> Experience:
    return feel_during(cells, lambda: _cut(lab), lambda: _mend(lab), _COLLECTIVES, PROOF)


def _nodes_slow(lab: Lab, cells: Cells) -> Experience:
    rate = ["root", "tbf", "rate", "1mbit", "burst", "64kb", "latency", "200ms"]

    def slow_down() -> None:
        for host in lab.hosts[:2]:
            command(["tc", "qdisc", "replace", "dev", _wire(host), *rate])
            host.run("tc", "qdisc", "replace", "dev", "eth1", *rate)

    try:
        return feel(slow_down, lambda: "nothing", lambda: cells.run(PROOF))
    finally:
        for host in lab.hosts[:2]:
            command(["tc", "qdisc", "delete", "dev", _wire(host), "root"], check=False)
            host.run("tc", "qdisc", "delete", "dev", "eth1", "root", check=False)


def _nodes_lossy(lab: Lab, cells: Cells) -> Experience:
    lose = ["-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "DROP"]

    def lose_some() -> None:
        for host in lab.hosts[:2]:
            host.run("iptables", "-A", "INPUT", "-i", "eth1", *lose)

    try:
        return feel(lose_some, lambda: "nothing", lambda: cells.run(PROOF))
    finally:
        for host in lab.hosts[:2]:
            host.run("iptables", "-F")


def _nodes_flapping(lab: Lab, cells: Cells) -> Experience:
    flaps = _Flaps(lambda: _cut(lab), lambda: _mend(lab), 0.4)
    return flaps.during(cells, _COLLECTIVES, PROOF)


# The network of the notebook


def _notebook_flapping(lab: Lab, cells: Cells) -> Experience:
    felt = _Flaps(lab.unplug, lab.plug_in, 1.2).during(cells, COUNTING, PROOF)
    numbers = [int(line) for line in cells.text().split()]
    assert numbers == list(range(len(numbers))), "lines are missing, or came twice"
    return felt


class _Flaps:
    """A link that is down and up again, several times.

    Parameters
    ----------
    cut, mend
        Take it down, and up again.
    pause
        Seconds for which it stays so.
    """

    def __init__(self, cut: Callable[[], object], mend: Callable[[], object], pause: float) -> None:
        self._steps = [cut, mend] * 5
        self._pause = pause

    def during(self, cells: Cells, code: str, proof: str) -> Experience:
        """Let it flap while a cell runs, then stop that and run the next.

        The time to the next cell counts from when the link is up for good.
        """
        run = cells.start(code)
        notices: list[str] = []
        mended = 0.0

        def flap() -> None:
            nonlocal mended
            for step in self._steps:
                step()
                time.sleep(self._pause)
            mended = time.monotonic()
            run.stop()

        thread = threading.Thread(target=flap)
        cells.events = []

        def show(event: object) -> None:
            cells.events.append(event)  # type: ignore[arg-type]
            if not thread.ident:
                thread.start()

        try:
            run.follow(show, notice=notices.append)
            run.values()
        except KeyboardInterrupt:
            pass
        thread.join()
        shown = cells.events
        cells.run(proof)
        felt = Experience("; ".join(notices) or "nothing", 0.0, time.monotonic() - mended)
        cells.events = shown
        return felt


SCENES = (
    HostScene(
        "the link between two nodes is cut in a collective",
        _nodes_cut,
        "lab1 and lab2 do not reach each other",
    ),
    HostScene("a slow link between nodes: the next cell has run", _nodes_slow, "nothing"),
    HostScene("a lossy link between nodes: the next cell has run", _nodes_lossy, "nothing"),
    HostScene("a flapping link between nodes, in collectives", _nodes_flapping, "nothing"),
    HostScene(
        "a flapping link to the notebook: no line is missing",
        _notebook_flapping,
        "nothing|no connection to any node",
    ),
)
