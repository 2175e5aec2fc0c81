"""Something breaks, and the user goes on: when they are told, and when the next cell has run."""

from __future__ import annotations

import time
from contextlib import ExitStack, suppress
from dataclasses import dataclass

from jupyter_sky.transport.protocol.events import Output
from tests.cluster.conftest import Cells, start
from tests.faults.catalogue import PROOF, SET_UP, Fault
from tests.faults.limits import NoControlGroups
from tests.faults.parts import until

_ENOUGH = 90.0  # seconds


@dataclass(frozen=True)
class Experience:
    """What a fault was like for the user.

    Attributes
    ----------
    said
        What they were told.
    known, usable
        Seconds until they were told, and until the next cell had run.
    """

    said: str
    known: float
    usable: float


def started(fault: Fault) -> Cells:
    """Start a cluster to break."""
    cells = fault.make()
    set_up(cells)
    return cells


def set_up(cells: Cells) -> None:
    """Bind what cells use, on ranks that are new as well."""
    if cells.cluster.runtime_env.together:
        cells.run(SET_UP)


def suffer(cells: Cells, fault: Fault) -> Experience:
    """Break something of a cluster, and go on as a user would."""
    with ExitStack() as mended:
        fault.prepare(cells, mended)
        struck, said = (_during if fault.during else _idle)(cells, fault, mended)
        known = time.monotonic() - struck
    if fault.ends:
        successor = start(nodes=2, framework=False)
        successor.run("pass")
        usable = time.monotonic() - struck
        successor.cluster.down()
        return Experience(said, known, usable)
    while True:
        try:
            cells.run(PROOF if cells.cluster.runtime_env.together else "pass")
        except Exception as error:  # one that has to do with the fault may come once more
            if time.monotonic() - struck > _ENOUGH:
                raise
            said += f" / {error}"
        else:
            return Experience(said, known, time.monotonic() - struck)


def _idle(cells: Cells, fault: Fault, mended: ExitStack) -> tuple[float, str]:
    """Break something while nothing runs; return when, and what panel and sidebar say then."""
    before = {rank.rank: rank.trouble for rank in cells.cluster.state.ranks}

    def news() -> str:
        if not cells.cluster.alive:
            return str(cells.cluster._controller.loss)
        ranks = cells.cluster.state.ranks
        new = (rank.trouble for rank in ranks if rank.trouble != before[rank.rank])
        return (
            next((text for text in new if text), "") or cells.cluster.snapshot()["cluster"]["note"]
        )

    struck = time.monotonic()
    fault.strike(cells, mended)
    until(cells, news)
    return struck, news()


def _during(cells: Cells, fault: Fault, mended: ExitStack) -> tuple[float, str]:
    """Break something while a cell runs; return when, and the error of the cell."""
    struck, inside = 0.0, 0

    def strike() -> None:
        nonlocal struck
        struck = time.monotonic()
        fault.strike(cells, mended)
        struck = time.monotonic()  # it may have had to wait for the moment

    def show(event: object) -> None:
        nonlocal inside
        if isinstance(event, Output) and not struck:
            inside += event.data.count(b"inside")
            if inside == len(fault.ranks):
                strike()

    values = dict.fromkeys(fault.ranks, fault.values) if fault.values else {}
    options = {"names": fault.names, "ranks": fault.ranks, "show": fault.ranks, "values": values}
    try:
        if "inside" not in fault.during:
            strike()
        run = cells.start(fault.during, **options)
        try:
            run.follow(show)
        except NoControlGroups:
            run.stop()
            with suppress(KeyboardInterrupt):
                run.follow(show)
            raise
        run.values()
    except NoControlGroups:
        raise
    except (Exception, KeyboardInterrupt) as error:
        return struck, f"{type(error).__name__}: {error}"
    return struck, "nothing"
