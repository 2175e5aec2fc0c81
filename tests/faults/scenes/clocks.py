"""A clock that is set an hour on, and two hours back, while a cell runs.

The clock is that of one kernel, its agents and ranks: they ask a small library for the time of day,
which is preloaded. ``python -m tests.faults.scenes.clocks FILE`` is that kernel.
"""

from __future__ import annotations

import json
import mmap
import os
import shutil
import struct
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path

from jupyter_sky.providers.local import Local
from tests.cluster.conftest import start
from tests.faults.experience import Experience
from tests.faults.scenes.scene import Scene
from tests.paths import ROOT
from tests.waiting import PATIENCE

HOUR = 3600
_SOURCE = Path(__file__).with_name("clock.c")


_COUNTS = """
import os, time
for n in range(20):
    print(n, flush=True)
    while n in (5, 10) and not os.path.exists(f"{folder}/{n}"):  # until the clock was set
        time.sleep(0.01)
    time.sleep(0.02)
"""


def missing() -> str | None:
    """Return why no clock can be set here; ``None`` if it can."""
    return None if shutil.which("cc") else "a C compiler is needed to set the clock of a process"


def _play() -> Experience:
    with tempfile.TemporaryDirectory(prefix="sky-clock-") as folder:
        library, clock = Path(folder, "clock.so"), Path(folder, "clock")
        compile_it = ["cc", "-shared", "-fPIC", "-O1", "-o", str(library), str(_SOURCE)]
        subprocess.run(compile_it, check=True)
        clock.write_bytes(struct.pack("q", 0))
        environment = {**os.environ, "LD_PRELOAD": str(library), "SKY_CLOCK": str(clock)}
        done = subprocess.run(
            [sys.executable, "-m", "tests.faults.scenes.clocks", str(clock)],
            cwd=ROOT, env=environment, capture_output=True, text=True, timeout=PATIENCE,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return Experience(**json.loads(done.stdout))


def main(clock: Path) -> None:
    """Be the kernel whose clock is set, and print what that was like."""
    with clock.open("r+b") as file:
        ahead = mmap.mmap(file.fileno(), 8)
    began = time.time()
    cells = start(2, framework=False, provider=Local(machines=2), idle_timeout=HOUR / 2)
    cells.namespace["folder"] = str(clock.parent)
    run = cells.start(_COUNTS, names=["folder"])
    struck, notices = 0.0, []

    def show(event: object) -> None:
        nonlocal struck
        cells.events.append(event)  # type: ignore[arg-type]
        lines = cells.text().splitlines()
        if "5" in lines and not struck:
            struck = time.monotonic()
            ahead[:] = struct.pack("q", HOUR)
            (clock.parent / "5").touch()
        elif "10" in lines:
            ahead[:] = struct.pack("q", -HOUR)
            (clock.parent / "10").touch()

    run.follow(show, notice=notices.append)
    ended = time.monotonic()
    assert began - 2 * HOUR < time.time() < began - HOUR / 2, "the clock was not set"
    assert [int(line) for line in cells.text().split()] == list(range(20))
    assert 0 < cells.cluster.snapshot()["run"]["seconds"] < 60
    ahead[:] = struct.pack("q", HOUR)
    cells.run("pass")
    # Nodes let each other in, whatever their clocks say: data goes from one to the other.
    cells.namespace["data"] = os.urandom(3_000_000)
    assert cells.ask("len(data)", names=["data"]) == [3_000_000] * 2
    usable = time.monotonic() - ended
    cells.cluster.down()
    print(json.dumps(asdict(Experience("; ".join(notices) or "nothing", 0.0, usable))))


SCENES = (Scene("a clock that jumps an hour on, and two back", _play, "^nothing$"),)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
