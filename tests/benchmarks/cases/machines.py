"""Machines over SSH, as hosts of the lab: all of them share the processors of this one."""

from __future__ import annotations

import contextlib
import os
import random
import statistics
import sys
import time
from collections.abc import Iterator, Sequence

import psutil

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.runtime_env import Timeouts
from jupyter_sky.errors import ClusterLost
from jupyter_sky.plugins import torch
from jupyter_sky.providers.base import Progress
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.provider import SSH
from tests.benchmarks.measure import Base, Row, Target, number, seconds, spread
from tests.cluster.conftest import Cells
from tests.lab import Host, Lab, missing

_HOSTS = 8
_ROUNDS = 3
_TRIPS = 200
_SIZE = 256_000_000
_WHO = {
    "fork_server": "ranks",
    "node.bridge": "bridges",
    "jupyter_sky.node ": "agents",
    "sshd": "SSH servers",
}


def machines(peers: bool) -> list[Row]:
    """Hosts that were prepared before: attached, sent data to, asked, and lost."""
    if reason := missing():
        return [Row("machines over SSH", None, "", note=reason)]
    with switched_on(_HOSTS) as lab:
        rows = [_attach(lab), *_push(lab), _lose(lab)]
    with switched_on(16) as lab:
        return [*rows, _ask(lab)]


def _attach(lab: Lab) -> Row:
    """What there is beside waiting for torch: its imports share the processors of this machine."""
    whole, beside = [], []
    for _ in range(_ROUNDS):
        said: dict[str, float] = {}
        began = time.monotonic()

        def note(text: object, said: dict[str, float] = said) -> None:
            said.setdefault(str(text), time.monotonic())

        with cluster_on(lab, framework=True, progress=note):
            whole.append(time.monotonic() - began)
        # Imports have begun before all agents are there: what is counted here is too much.
        waiting = said["forming the group"] - said["importing torch"]
        beside.append(whole[-1] - waiting)
    return Row(
        f"attach to {_HOSTS} prepared hosts with a formed group, beside waiting for `import torch`",
        statistics.median(beside),
        "s",
        Target(3.0),
        note=f"{spread(beside)}; with {_HOSTS} imports on these processors {spread(whole)}",
    )


def _push(lab: Lab) -> list[Row]:
    with cluster_on(lab) as cells:
        cells.namespace["data"] = random.randbytes(_SIZE)
        before = cells.cluster.sent_bytes
        taken = seconds(lambda: cells.run("pass", names=["data"]))
        sent = cells.cluster.sent_bytes - before
    return [
        Row(
            f"bytes that leave the notebook for a blob, {_HOSTS} hosts",
            sent / 1e6,
            "MB",
            Target(1.05, ratio=True),
            Base("its size", _SIZE / 1e6),
        ),
        Row(f"{_SIZE / 1e6:.0f} MB to {_HOSTS} hosts", taken, "s"),
    ]


def _lose(lab: Lab) -> Row:
    with cluster_on(lab) as cells:
        cells.run("import time")
        run = cells.start("print('here', flush=True)\ntime.sleep(600)")
        lost = [0.0]

        def cut_the_power(event: object) -> None:
            lab.hosts[-1].power_off()
            lost[0] = time.monotonic()

        run.follow(cut_the_power)
        try:
            run.values()
        except ClusterLost:
            taken = time.monotonic() - lost[0]
    lab.hosts[-1].start()
    return Row("a host that lost its power is named", taken, "s", Target(15.0))


def _ask(lab: Lab) -> Row:
    """What the processors of this machine, which all hosts share, have to do for a cell."""
    with cluster_on(lab, ranks=4) as cells:
        for _ in range(_TRIPS // 10):
            cells.run("pass")
        before = _processor_times(lab)
        trips = [seconds(lambda: cells.run("pass")) for _ in range(_TRIPS)]
        after = _processor_times(lab)
    taken = {who: 1000 * (after[who] - before.get(who, 0)) / _TRIPS for who in after}
    count = os.cpu_count() or 1
    shares = ", ".join(f"{who} {number(each)}" for who, each in taken.items())
    return Row(
        f"round trip of an empty cell, 64 ranks on {len(lab.hosts)} hosts",
        1000 * statistics.median(trips),
        "ms",
        Target(1.25, ratio=True),
        Base(f"the processor time of it on {count} processors", sum(taken.values()) / count),
        note=f"{spread(trips, 'ms', 1000)}; processor time in ms: {shares}",
    )


def _processor_times(lab: Lab) -> dict[str, float]:
    """Return the seconds of processor time that this process and those of all hosts have had."""
    here = psutil.Process().cpu_times()
    taken = {"the notebook": here.user + here.system}
    for process in (each for host in lab.hosts for each in host.processes()):
        with contextlib.suppress(psutil.Error):
            words, times = " ".join(process.cmdline()), process.cpu_times()
            who = next((who for mark, who in _WHO.items() if mark in words), "others")
            taken[who] = taken.get(who, 0.0) + times.user + times.system
    return taken


@contextlib.contextmanager
def switched_on(count: int) -> Iterator[Lab]:
    """Have so many hosts, and a home of their own for this process."""
    lab = Lab.start(count)
    before = {name: os.environ.pop(name, None) for name in ("HOME", "SSH_AUTH_SOCK")}
    os.environ["HOME"] = str(lab.home)
    try:
        yield lab
    finally:
        del os.environ["HOME"]
        os.environ.update({name: value for name, value in before.items() if value is not None})
        lab.stop()


@contextlib.contextmanager
def cluster_on(
    lab: Lab,
    framework: bool = False,
    ranks: int = 1,
    progress: Progress = lambda text: None,
    but: Sequence[Host] = (),
) -> Iterator[Cells]:
    """Have a cluster on the hosts of a lab, all but some."""
    hosts = [f"{host.name}:{ranks}" for host in lab.hosts if host not in but]
    wanted = ClusterSpec(name=f"measured-{len(hosts)}", nodes=len(hosts))
    spec, runtime_env = assemble(wanted, [torch()] if framework else [])
    provider = SSH(hosts, python=sys.executable)
    cluster = Cluster.start(spec, provider, runtime_env, progress, Timeouts(start=300))
    try:
        yield Cells(cluster)
    finally:
        cluster.down()
