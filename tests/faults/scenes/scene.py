"""A scene: something breaks that needs more than a cluster and a signal."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass

from tests.cluster.conftest import Cells
from tests.faults.experience import Experience
from tests.faults.other_kernel import COUNTING
from tests.lab import Lab


@dataclass(frozen=True)
class Scene:
    """Something that breaks on this computer.

    Attributes
    ----------
    what
        What breaks, in words.
    play
        Breaks it, goes on as a user would, and says what that was like.
    said
        What the user is told then, as a regular expression.
    known, usable
        Seconds to reach, until the user is told and until the next cell has run.
    """

    what: str
    play: Callable[[], Experience]
    said: str
    known: float = 1.0
    usable: float = 3.0

    @property
    def name(self) -> str:
        """What tests call it."""
        return re.sub(r"\W+", "-", self.what)


@dataclass(frozen=True)
class HostScene:
    """Something that breaks on hosts of the lab; the attributes are those of `Scene`.

    ``play`` is given the lab, and a cluster on its first two hosts that it leaves whole.
    """

    what: str
    play: Callable[[Lab, Cells], Experience]
    said: str
    known: float = 15.0
    usable: float = 3.0

    @property
    def name(self) -> str:
        """What tests call it."""
        return re.sub(r"\W+", "-", self.what)


def feel(
    strike: Callable[[], object], told: Callable[[], str], go_on: Callable[[], object]
) -> Experience:
    """Break something, wait until the user is told, and have the next cell run."""
    struck = time.monotonic()
    strike()
    said = told()
    known = time.monotonic() - struck
    go_on()
    return Experience(said, known, time.monotonic() - struck)


def feel_during(
    cells: Cells,
    strike: Callable[[], object],
    mend: Callable[[], object] = lambda: None,
    code: str = COUNTING,
    proof: str = "pass",
) -> Experience:
    """Break something while a cell runs, mend it when the user is told, and stop the cell.

    The user goes on with the next cell; that is counted from when it is mended.
    """
    run = cells.start(code)
    times: dict[str, float] = {}
    said: list[str] = []

    def show(event: object) -> None:
        if not times:
            times["struck"] = time.monotonic()
            strike()

    def notice(text: str) -> None:
        said.append(text)
        if "known" not in times:
            times["known"] = time.monotonic()
            mend()
            times["mended"] = time.monotonic()
            run.stop()

    try:
        run.follow(show, notice=notice)
        run.values()
    except (Exception, KeyboardInterrupt) as error:
        said.append(f"{type(error).__name__}: {error}")
        times.setdefault("known", time.monotonic())
        times.setdefault("mended", times["struck"])
    cells.run(proof)
    usable = time.monotonic() - times["mended"]
    return Experience("; ".join(said), times["known"] - times["struck"], usable)
