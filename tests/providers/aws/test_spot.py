"""Spot instances, which hear two minutes before that they will be taken away."""

from __future__ import annotations

import re

import pytest

from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.errors import SkyError
from tests.cluster.conftest import Cells
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.machines import Machines
from tests.waiting import until

HOOK = """
import jupyter_sky as sky
saved = []

@sky.on_interruption
def save(notice):
    saved.append((notice.kind, notice.here, notice.ranks, step))
"""

TRAIN = """
import time
step = 0
while not saved:
    step += 1
    time.sleep(0.001)
before = saved[0][-1]
"""


def followed(run: RunHandle) -> list[str]:
    """Follow a run to its end, and return what the user was told meanwhile."""
    told: list[str] = []
    run.follow(notice=told.append)
    return told


def start_training(cells: Cells) -> RunHandle:
    cells.run("step = 0")
    cells.run(HOOK)
    return cells.start(TRAIN)


def test_what_would_be_lost_is_saved_on_every_rank(start: Start, machines: Machines) -> None:
    cells = start(2, framework=False, spot=True)
    run = start_training(cells)
    machines.interrupt(list(machines.hosts)[1], seconds=120)
    told = followed(run)
    leaving, staying = [host.address for host in machines.hosts.values()][::-1]
    # Agents ask every five seconds, and have two minutes.
    assert re.match(rf"root@{leaving} will be taken away by AWS in [01]:\d\d", told[0]), told
    assert cells.ask("saved[0][:3]") == [
        ("terminate", False, (1,)),
        ("terminate", True, (1,)),
    ]
    note = cells.cluster.snapshot()["cluster"]["note"]
    assert re.match(rf"root@{leaving} will be taken away by AWS in [01]:\d\d", note), note
    assert staying not in note
    # The time that is left is shown anew every second.
    shown = {note}

    def notes() -> int:
        shown.add(cells.cluster.snapshot()["cluster"]["note"])
        return len(shown)

    until(lambda: notes() == 3)


def test_the_rank_stands_still_while_it_saves(start: Start, machines: Machines) -> None:
    cells = start(1, framework=False, spot=True)
    cells.run("step = 0\nsaved = []")
    cells.run(
        "import jupyter_sky as sky, time\n"
        "@sky.on_interruption\n"
        "def save():\n"
        "    first = step\n"
        "    time.sleep(0.5)\n"
        "    saved.append((first, step))\n"
        "    print('saved it')"
    )
    run = cells.start("while not saved:\n    step += 1\n    time.sleep(0.001)")
    machines.interrupt(next(iter(machines.hosts)), seconds=120)
    printed: list[bytes] = []
    run.follow(lambda event: printed.append(event.data))
    [(first, last)] = cells.ask("saved[0]")
    assert first == last > 0
    assert b"".join(printed) == b"saved it\n"


def test_a_hook_that_fails_harms_nothing(start: Start, machines: Machines) -> None:
    cells = start(1, framework=False, spot=True)
    run_before = cells.run("step = 0\nsaved = []")
    assert run_before == {}
    cells.run(
        "import jupyter_sky as sky\n"
        "@sky.on_interruption\n"
        "def bad():\n"
        "    raise RuntimeError('the disk is full')\n"
        "@sky.on_interruption\n"
        "def good():\n"
        "    saved.append(1)"
    )
    run = cells.start("while not saved: step += 1")
    machines.recommend_to_leave(next(iter(machines.hosts)))
    printed: list[bytes] = []
    told: list[str] = []
    run.follow(lambda event: printed.append(event.data), notice=told.append)
    [host] = machines.hosts.values()
    assert told == [f"AWS recommends leaving root@{host.address}, which it may take back soon"]
    assert b"RuntimeError: the disk is full" in b"".join(printed)
    assert cells.ask("1 + 1") == [2]


def test_a_hook_belongs_on_the_nodes() -> None:
    import jupyter_sky as sky

    with pytest.raises(SkyError, match="write it in a cell that begins with %%sky"):
        sky.on_interruption(print)


def test_who_is_taken_away_while_a_cluster_grows_is_named(start: Start, machines: Machines) -> None:
    """Also where it is the instance that has come."""
    cells = start(1, framework=False, spot=True)
    [first] = machines.hosts

    def interrupt(text: object) -> None:
        if str(text).endswith("to boot"):
            machines.interrupt(first, seconds=120)

    cells.cluster.scale(2, progress=interrupt)
    old, new = (host.address for host in machines.hosts.values())

    def note() -> str:
        return cells.cluster.snapshot()["cluster"]["note"]

    until(lambda: f"root@{old} will be taken away by AWS in" in note())
    machines.interrupt(list(machines.hosts)[1], seconds=120)
    until(lambda: f"root@{new} will be taken away by AWS in" in note())
    cells.run(HOOK)
    assert cells.ask("1 + 1") == [2, 2]
