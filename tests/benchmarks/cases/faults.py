"""What breaks: when the user knows, and when the next cell has run.

What is broken and how stands in `tests.faults.catalogue` and `tests.faults.scenes`; their tests
hold what is said and that nothing is left behind.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.errors import RankLost
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.providers.ssh.provider import SSH
from tests.benchmarks.cases.machines import cluster_on, switched_on
from tests.benchmarks.measure import Row, Target, seconds
from tests.cluster.conftest import Cells
from tests.faults.catalogue import FAULTS, Fault, with_torch
from tests.faults.experience import Experience, set_up, started, suffer
from tests.faults.other_kernel import running_kernel
from tests.faults.parts import attach
from tests.faults.scenes import HOST_SCENES, SCENES
from tests.faults.scenes.links import cluster_on_two_networks
from tests.faults.scenes.scene import HostScene, Scene
from tests.lab import Lab, missing


def faults(peers: bool, only: Sequence[str] = ()) -> list[Row]:
    """Everything of the catalogue, on this machine and on hosts of the lab.

    Parameters
    ----------
    peers
        Others have no such faults.
    only
        Parts of the names of what is to break; everything by default.
    """

    def wanted(what: str) -> bool:
        return not only or any(each in what for each in only)

    with _clusters() as cluster:
        rows = [
            row
            for fault in FAULTS
            if wanted(fault.what)
            for row in _measured(fault.what, lambda fault=fault: _rows(fault, cluster(fault)))
        ]
    if wanted(_KERNEL):
        rows += _measured(_KERNEL, _kernel_killed)
    for scene in SCENES:
        if wanted(scene.what):
            rows += _measured(scene.what, lambda scene=scene: _felt(scene, scene.play()))
    if on_hosts := [each for what, each in _ON_HOSTS.items() if wanted(what)]:
        rows += _measured("hosts", lambda: _on_hosts(on_hosts))
    if wanted(_REPLACED):
        rows += _measured(_REPLACED, _replaced)
    if links := [each for each in HOST_SCENES if wanted(each.what)]:
        rows += _measured("links between hosts", lambda: _on_links(links))
    return rows


def names() -> list[str]:
    """Return what can be chosen."""
    catalogue = (each.what for each in (*FAULTS, *SCENES, *HOST_SCENES))
    return [*catalogue, _KERNEL, *_ON_HOSTS, _REPLACED]


def _measured(what: str, measure: Callable[[], list[Row]]) -> list[Row]:
    """Return the rows of a measurement, or one that says why there are none."""
    try:
        return measure()
    except Exception as error:  # the other figures are worth having all the same
        return [Row(what, None, "s", note=f"{type(error).__name__}: {error}"[:200])]


def _rows(fault: Fault, cells: Cells) -> list[Row]:
    return _felt(fault, suffer(cells, fault))


def _felt(what: Fault | Scene | HostScene, felt: Experience) -> list[Row]:
    said = " ".join(felt.said.split())
    return [
        Row(what.what, felt.known, "s", Target(what.known), note=said[:160]),
        Row("… until the next cell has run", felt.usable, "s", Target(what.usable)),
    ]


@contextmanager
def _clusters() -> Iterator[Callable[[Fault], Cells]]:
    """Give a cluster to break; what is whole again afterwards is broken again."""
    shared: list[Cells] = []
    alone: list[Cells] = []

    def cluster(fault: Fault) -> Cells:
        if fault.make is not with_torch:
            alone.append(started(fault))
            return alone[-1]
        if not shared:
            shared.append(started(fault))
        set_up(shared[0])
        return shared[0]

    try:
        yield cluster
    finally:
        for cells in [*shared, *alone]:
            cells.cluster.down()


def _kernel_killed() -> list[Row]:
    """Kill a kernel while its cell runs, and take the run up from this one."""
    with running_kernel("killed") as kernel:
        kernel.kill()
        killed = time.monotonic()
        cells = attach("killed")
    run = cells.cluster.pop_unseen_run()
    assert run is not None
    known = 0.0

    def show(event: object) -> None:
        nonlocal known
        if not known:
            known = time.monotonic()
            run.stop()

    run.follow(show)
    cells.run("pass")
    usable = time.monotonic()
    cells.cluster.down()
    return [
        Row("kill -9 of a kernel: `%sky attach` shows its run", known - killed, "s", Target(1)),
        Row("… until, that run stopped, the next cell has run", usable - killed, "s", Target(3)),
    ]


# Hosts, over SSH


def _on_hosts(breaks: Sequence[Callable[[Cells, Lab], list[Row]]]) -> list[Row]:
    if reason := missing():
        return [Row("faults of hosts over SSH", None, "s", note=reason)]
    with switched_on(2) as lab, cluster_on(lab) as cells:
        return [row for each in breaks for row in each(cells, lab)]


def _restart_sshd(cells: Cells, lab: Lab) -> list[Row]:
    for host in lab.hosts:
        host.restart_sshd()
    return [_next_cell("sshd was restarted on every host", cells)]


def _bad_link(what: str, megabits: float, loss: float, cells: Cells, lab: Lab) -> list[Row]:
    for host in lab.hosts:
        host.slow_down(megabits, loss)
    row = _next_cell(what, cells)
    for host in lab.hosts:
        host.speed_up()
    return [row]


def _on_links(scenes: Sequence[HostScene]) -> list[Row]:
    if reason := missing():
        return [Row("faults of links between hosts", None, "s", note=reason)]
    with switched_on(2) as lab, cluster_on_two_networks(lab) as cells:
        return [
            row
            for scene in scenes
            for row in _measured(
                scene.what, lambda scene=scene: _felt(scene, scene.play(lab, cells))
            )
        ]


def _power_off(cells: Cells, lab: Lab) -> list[Row]:
    """Cut the power of a host while a cell runs; a new cluster starts on those that are left."""
    run = cells.start("print('inside', flush=True)\ntime.sleep(600)")
    struck = 0.0

    def show(event: object) -> None:
        nonlocal struck
        if not struck:
            struck = time.monotonic()
            lab.hosts[-1].power_off()

    try:
        run.follow(show)
        run.values()
    except SkyError as error:
        said = str(error)
    known = time.monotonic()
    with cluster_on(lab, but=lab.hosts[-1:]) as successor:
        successor.run("pass")
        usable = time.monotonic()
    return [
        Row("power off of a host, computing", known - struck, "s", Target(15), note=said[:160]),
        Row("… until a cell has run on the other one", usable - struck, "s", Target(18)),
    ]


def _replaced() -> list[Row]:
    """Cut the power of a host while a cell runs, where another one can take its place."""
    if reason := missing():
        return [Row(_REPLACED, None, "s", note=reason)]
    with switched_on(3) as lab:
        wanted = ClusterSpec(name="measured-replaced", nodes=2, replace=True)
        spec, runtime_env = assemble(wanted, [])
        provider = SSH([host.name for host in lab.hosts], python=sys.executable)
        cells = Cells(Cluster.start(spec, provider, runtime_env))
        code = "import time\nprint('inside', flush=True)\ntime.sleep(600)"
        run = cells.start(code, ranks=(1,), show=(1,))
        struck = 0.0

        def show(event: object) -> None:
            nonlocal struck
            if not struck:
                struck = time.monotonic()
                lab.hosts[1].power_off()

        try:
            run.follow(show)
            run.values()
        except RankLost as error:
            said = str(error)
        known = time.monotonic()
        cells.run("pass")
        usable = time.monotonic()
        cells.cluster.down()
    return [
        Row(_REPLACED, known - struck, "s", Target(15), note=said[:160]),
        Row("… until the next cell has run", usable - struck, "s", Target(18)),
    ]


def _next_cell(what: str, cells: Cells) -> Row:
    """Return how long a cell takes where nothing has to be told."""
    return Row(f"{what}: the next cell has run", seconds(lambda: cells.run("pass")), "s", Target(3))


def _cut_link(cells: Cells, lab: Lab) -> list[Row]:
    """Cut the notebook's link to a run that goes on, and mend it when the user knows."""
    cells.run("import time")
    run = cells.start("for n in range(10**9):\n    print(n, flush=True)\n    time.sleep(0.1)")
    times: dict[str, float] = {}
    said: list[str] = []

    def show(event: object) -> None:
        if not times:
            times["cut"] = time.monotonic()
            lab.unplug()
        elif "mended" in times and not run.stopped:
            times["again"] = time.monotonic()
            run.stop()

    def notice(text: str) -> None:
        said.append(text)
        if "mended" not in times:
            times["known"] = time.monotonic()
            lab.plug_in()
            times["mended"] = time.monotonic()

    run.follow(show, notice=notice)
    known, again = times["known"] - times["cut"], times["again"] - times["mended"]
    return [
        Row("the notebook's link is cut while a cell runs", known, "s", Target(15), note=said[0]),
        Row("… once it is mended, until the cell's output goes on", again, "s", Target(3)),
    ]


_KERNEL = "kill -9 of a kernel"
_REPLACED = "power off of a host with --replace, computing"
_SLOW, _LOSSY = "a slow link to every host", "a lossy link to every host"
_ON_HOSTS: dict[str, Callable[[Cells, Lab], list[Row]]] = {
    "the notebook's link is cut while a cell runs": _cut_link,
    "sshd was restarted on every host": _restart_sshd,
    _SLOW: partial(_bad_link, _SLOW, 1.0, 0.0),
    _LOSSY: partial(_bad_link, _LOSSY, 1000.0, 0.1),
    "power off of a host, computing": _power_off,  # the last: there is one host less then
}
