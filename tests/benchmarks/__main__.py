"""Measure what the design promises and print a table.

Peers are measured beside when they are installed in the interpreter that runs this. The exit
status is 0 when all targets are reached, 1 when one is missed, and 2 when something could not be
measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tests.benchmarks import long_life, picture, table
from tests.benchmarks.cases import (
    contest,
    faults,
    history,
    imports,
    machines,
    output,
    panel,
    recovery,
    rented,
    scale,
    start,
    volumes,
)
from tests.benchmarks.cases.ssh import files, links
from tests.benchmarks.cases.workloads import (
    calls,
    models,
    recording,
    sampling,
    small_tasks,
    training,
)
from tests.benchmarks.measure import Row, missed, unmeasured
from tests.benchmarks.processes import adopt_orphans, end_descendants

THEMES = {
    "imports": imports.imports,
    "start": start.start,
    "round-trip": contest.round_trip,
    "push": contest.push,
    "training": training.training,
    "recording": recording.recording,
    "sampling": sampling.sampling,
    "models": models.models,
    "small-tasks": small_tasks.small_tasks,
    "calls": calls.calls,
    "lines": output.lines,
    "flood": output.flood,
    "panel": panel.panel,
    "history": history.history,
    "killed": recovery.killed,
    "stop": recovery.stop,
    "faults": faults.faults,
    "long-life": long_life.long_life,
    "machines": machines.machines,
    "files": files.files,
    "links": links.links,
    "scale": scale.scale,
    "volumes": volumes.volumes,
    "rented": rented.rented,
}


def main() -> int:
    """Measure what was asked for and return the exit status."""
    options = _options()
    if options.fault:
        options.only = [*(options.only or []), "faults"]
        THEMES["faults"] = partial(faults.faults, only=options.fault)
    with _workplace():
        rows = list(_measured(dict.fromkeys(options.only or THEMES), options.peers))
    print(table.render(rows))
    if options.json:
        measured = {"machine": picture.machine(), "figures": table.plain(rows)}
        _write(options.json, json.dumps(measured, indent=2) + "\n")
    if options.svg:
        _write(options.svg, picture.draw(rows, picture.machine()))
    return report(rows)


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def report(rows: Sequence[Row]) -> int:
    """Name what was missed or could not be measured, and return the exit status that says so."""
    for row in unmeasured(rows):
        print(f"not measured: {row.what}: {row.note}", file=sys.stderr)
    for row in missed(rows):
        print(f"missed: {row.what} ({row.target})", file=sys.stderr)
    return 2 if unmeasured(rows) else int(bool(missed(rows)))


def _options(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.benchmarks", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=THEMES, metavar="NAME",
        help=f"measure only this; may be repeated: {', '.join(THEMES)}",
    )  # fmt: skip
    parser.add_argument(
        "--fault", action="append", metavar="TEXT",
        help="break only what has this in its name; may be repeated",
    )  # fmt: skip
    parser.add_argument(
        "--peers", action=argparse.BooleanOptionalAction, default=True,
        help="measure peers as well, where they are installed",
    )  # fmt: skip
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there, too")
    parser.add_argument(
        "--svg", type=Path, metavar="FILE", help="draw there what peers have a figure for"
    )
    options = parser.parse_args(words)
    for text in options.fault or ():
        if not any(text in name for name in faults.names()):
            said = "".join(f"\n  {name}" for name in faults.names())
            parser.error(f"no fault has {text!r} in its name; there are:{said}")
    return options


def _measured(themes: Iterable[str], peers: bool) -> Iterator[Row]:
    for theme in themes:
        print(f"{theme} …", file=sys.stderr)
        try:
            yield from THEMES[theme](peers)
        except Exception as error:  # the other figures are worth having all the same
            yield Row(theme, None, "", note=f"{type(error).__name__}: {error}".splitlines()[0])


@contextmanager
def _workplace() -> Iterator[None]:
    """Keep everything in one folder that goes at the end, as does every process."""
    folder = Path(tempfile.mkdtemp(prefix="sky-"))
    # TMPDIR is where peers keep their sockets and logs.
    places = {"JUPYTER_SKY_HOME": "sky", "IPYTHONDIR": "ipython", "TMPDIR": "tmp"}
    for variable, name in places.items():
        (folder / name).mkdir(mode=0o700)
        os.environ[variable] = str(folder / name)
    adopt_orphans()
    try:
        yield
    finally:
        for command in end_descendants():
            print(f"left behind, and ended: {command[:100]}", file=sys.stderr)
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
