"""Run the suite on a machine with an NVIDIA GPU, print its table, and keep it in RESULTS.md.

The machine needs PyTorch and nothing else: what the suite imports beside it is taken from the
wheels of build/gpu, which `make gpu-wheels` puts there on a machine with a network.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tests.gpu import figures, machine, wheels

if TYPE_CHECKING:
    import pytest

ROOT = Path(__file__).parents[2]
NOT_INSTALLED, NO_GPU = 2, 3  # exit statuses
NEEDED = ("pytest", "xdist", "ipykernel")
TOGETHER = 4
"""Processes that run tests side by side, each with clusters of its own."""


def main() -> int:
    """Run it and return the exit status: 0 when all is well, 2 or 3 where it cannot run."""
    found = machine.find()
    if isinstance(found, str):
        print(f"make test-gpu: {found}", file=sys.stderr)
        return NO_GPU
    folders = [str(ROOT), *map(str, wheels.unpack())]
    sys.path[:0] = folders
    if missing := [each for each in NEEDED if importlib.util.find_spec(each) is None]:
        print(
            f"make test-gpu: {sys.executable} lacks {', '.join(missing)}: run `make gpu-wheels`, "
            "also on another machine if there is no network here, or `make test-environment`.",
            file=sys.stderr,
        )
        return NOT_INSTALLED
    # Agents, ranks and torchrun are other processes.
    before = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*folders, *before])
    # Plugins that are installed there have no part in it, and may not go with this pytest.
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    import pytest

    collected = Collected()
    began = time.monotonic()
    # Without the settings and fixtures of the other tests: they need more than there is here.
    here = Path(__file__).parent
    places = ["-c", os.devnull, f"--rootdir={ROOT}", f"--confcutdir={here}"]
    ways = ["--import-mode=importlib", "-p", "no:cacheprovider", "-p", "xdist", "-q", "-ra"]
    together = [f"--numprocesses={min(TOGETHER, os.cpu_count() or 1)}", "--dist=worksteal"]
    # What measures a GPU as a whole comes first, and alone.
    statuses = [
        pytest.main([*places, *ways, *more, *sys.argv[1:], str(here)], plugins=[collected])
        for more in (["-m", "alone"], ["-m", "not alone", *together])
    ]
    nothing = pytest.ExitCode.NO_TESTS_COLLECTED
    status = max((each for each in statuses if each != nothing), default=nothing)
    seconds = time.monotonic() - began
    print(f"\n{found}\n\n{figures.table(collected.checks)}\n\n{seconds:.0f} s")
    if not sys.argv[1:]:  # of all of it
        date = datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC")
        figures.write(str(found), date, _commit(), seconds, collected.checks)
    return int(status)


class Collected:
    """A plugin of pytest that keeps how each check came out."""

    def __init__(self) -> None:
        self._of: dict[str, figures.Check] = {}

    @property
    def checks(self) -> list[figures.Check]:
        """A row for each check, in the order of their files."""
        return [self._of[each] for each in sorted(self._of, key=lambda each: each.split("::")[0])]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Take over how it came out and what it measured; what fails at its end has failed."""
        check = self._of.setdefault(report.nodeid, figures.Check(_what(report.nodeid)))
        if report.when == "call":
            for _, measured in report.user_properties:
                check.figures.extend(measured)
        if report.failed:
            crash = getattr(report.longrepr, "reprcrash", None)
            said = str(crash.message if crash else report.longrepr).splitlines() or [""]
            check.outcome = f"failed: {said[0]}"[:160].replace("|", "/")
        elif report.skipped and isinstance(report.longrepr, tuple):
            check.outcome = f"skipped: {report.longrepr[2].removeprefix('Skipped: ')}"
        elif report.when == "call" and check.outcome == "not run":
            check.outcome = "passed"


def _what(test: str) -> str:
    """Return what a test shows; those of the stand-in are named as that."""
    stand_in = "on the stand-in of NVML: " if "stand_in" in test else ""
    return stand_in + test.partition("::")[2].removeprefix("test_").replace("_", " ")


def _commit() -> str:
    """Return what is tested; the folder may have been carried here without its history."""
    told = wheels.FOLDER / "commit"
    if told.exists():
        return told.read_text().strip()
    try:
        asked = subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=ROOT, capture_output=True, text=True
        )
    except OSError:
        return "not known"
    return asked.stdout.strip() or "not known"


if __name__ == "__main__":
    sys.exit(main())
