"""Every call of a launch, its end, of growth and of nodes that leave × what can go wrong at it.

``python -m tests.providers.aws.calls.table`` writes what it finds to ``table.md``: some minutes.
``growth`` behind it begins with nodes that come and leave, ``power`` with stopping and starting;
they keep the rows before.
"""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.providers.aws import AWS, rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.spec import ClusterSpec
from tests.providers.aws import starting
from tests.providers.aws.calls.scenes import (
    END,
    FAULTS,
    GROWTH,
    LAUNCH,
    LEAVING,
    START,
    STOP,
    Outcome,
    Scenes,
    is_different,
    put,
)

TABLE = Path(__file__).with_name("table.md")

_HEAD = """# Something goes wrong at a call to AWS

What `python -m tests.providers.aws.calls.table` found: at every call that a launch makes (four
instances that boot when they are given back), and its end, which is that of `%sky down`; then what
another node asks for in a cluster that is up, and one that leaves; then what stopping a cluster
asks for, and starting it again, after which what was on its disk is there. Each cell says how many
instances would have run for nobody for longer than 15 minutes, and how much was left after
`%sky gc`. In parentheses: how many instances still ran when it was over, which end by themselves
10 minutes after they have booted, or earlier with `%sky gc`; those of a cluster that was stopped
stop then, and keep their disks.

*Denied for ever*: from that call on, AWS refuses that action, also while everything is given back,
until `%sky gc` is allowed it again. *Lost answer*: AWS does it, and the connection ends before the
answer. *Killed*: the kernel, before the call is carried out, and after. *Throttled*: twice in turn.

"""


_BEFORE = {"growth": ("launch", "end"), "power": ("launch", "end", "growth", "leaving")}


@dataclass(frozen=True)
class Row:
    """What was found at a call, for each of `FAULTS`: as text."""

    phase: str
    action: str
    cells: tuple[str, ...]

    @property
    def beyond_and_left(self) -> list[str]:
        """The cells without what still ran."""
        return [each.partition(" (")[0] for each in self.cells]


def saved() -> list[Row]:
    """Return the rows of the table as it was written last."""
    lines = [line.strip("|").split("|") for line in TABLE.read_text().splitlines() if "|" in line]
    rows = [[cell.strip() for cell in line] for line in lines[2:]]
    return [Row(row[0], row[1], tuple(row[2:])) for row in rows]


def write(rows: list[Row]) -> None:
    """Write the table."""
    lines = [("when", "call", *FAULTS), ("---",) * (2 + len(FAULTS))]
    lines += [(row.phase, row.action, *row.cells) for row in rows]
    TABLE.write_text(_HEAD + "".join(f"| {' | '.join(line)} |\n" for line in lines))


def of_a_life(scenes: Scenes) -> Iterator[Row]:
    """Do it at each call of a launch and of its end."""
    for number, action in enumerate(LAUNCH + END, start=1):
        phase = "launch" if number <= len(LAUNCH) else "end"
        yield _row(phase, action, number, scenes.life)


def of_sizes(scenes: Scenes, name: str) -> Iterator[Row]:
    """Do it at each call for another node, and for one that leaves.

    Parameters
    ----------
    name
        A cluster of one node that is up, and to which nobody is connected.
    """
    for number, action in enumerate(GROWTH, start=1):
        yield _row("growth", action, number, lambda n, fault: scenes.scale(name, 2, n, fault))

    def leave(number: int, fault: str) -> Outcome:
        scenes.grown(name)
        return scenes.scale(name, 1, number, fault)

    for number, action in enumerate(LEAVING, start=1):
        yield _row("leaving", action, number, leave)


def of_power(scenes: Scenes, name: str) -> Iterator[Row]:
    """Do it at each call of stopping and starting a cluster; ``name`` as in `of_sizes`."""
    put(name)
    for number, action in enumerate(STOP, start=1):
        yield _row("stop", action, number, lambda n, fault: scenes.stop(name, n, fault))
    for number, action in enumerate(START, start=1):
        yield _row("start", action, number, lambda n, fault: scenes.start(name, n, fault))


def _row(phase: str, action: str, number: int, do: Callable[[int, str], Outcome]) -> Row:
    cells = []
    for fault in FAULTS:
        if not is_different(action, fault):
            cells.append("the same")
            continue
        outcome = do(number, fault)
        print(f"{phase} {number} {action}, {fault}: {outcome}", flush=True)
        assert outcome.action == action
        runs = f" ({outcome.running})" if outcome.running else ""
        cells.append(f"{outcome.beyond}, {len(outcome.left)}{runs}")
    return Row(phase, action, tuple(cells))


def end(name: str) -> None:
    """End a cluster to which nobody is connected."""
    row = registry.find(name)
    assert row is not None
    cluster = Cluster.attach(row, AWS(), RuntimeEnv({}))
    assert cluster is not None
    with patch.object(rented, "KNOWN_WITHIN", 1.0):  # as in the scenes
        cluster.down()


def main() -> None:
    """Find it out, and write it down."""
    from tests.lab import Lab
    from tests.providers.aws.stand_in.account import Account
    from tests.providers.aws.stand_in.machines import Machines

    account, lab = Account(), Lab.start(1)
    os.environ.update(account.environment)
    try:
        with tempfile.TemporaryDirectory() as home:
            os.environ.update(JUPYTER_SKY_HOME=home, TMPDIR=home)
            clients = Clients("us-east-1")
            vpc = clients.ec2.create_vpc(CidrBlock="127.77.0.0/16")["Vpc"]["VpcId"]
            made = clients.ec2.create_subnet(
                VpcId=vpc, CidrBlock="127.77.0.0/24", AvailabilityZone="us-east-1a"
            )
            scenes = Scenes(account, clients, made["Subnet"]["SubnetId"])
            starting.provider(scenes.subnet).check(starting.SPEC, [])
            asked = sys.argv[1:]
            if asked:
                rows = [row for row in saved() if row.phase in _BEFORE[asked[0]]]
            else:
                rows = list(of_a_life(scenes))
                write(rows)
            machines = Machines(lab, account)
            settings = {"python": sys.executable, "user": "root", "addresses": "private"}
            provider = AWS(subnet=machines.subnet(clients), **settings)
            spec, runtime_env = assemble(ClusterSpec("grows", nodes=1, cpus="4+"), [])
            Cluster.start(spec, provider, runtime_env).close()
            try:
                if asked != ["power"]:
                    rows += of_sizes(scenes, "grows")
                    write(rows)
                write([*rows, *of_power(scenes, "grows")])
            finally:
                end("grows")
                machines.close()
    finally:
        lab.stop()
        account.close()


if __name__ == "__main__":
    main()
