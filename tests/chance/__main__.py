"""Run the test by chance for as long as is wanted: each seed is a few clusters, with many steps.

It ends with the first thing that is not as it should be, and says the seed that shows it again.
"""

from __future__ import annotations

import argparse
import faulthandler
import os
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from tests.benchmarks.cases.machines import switched_on
from tests.benchmarks.processes import adopt_orphans, end_descendants
from tests.chance.base import Machine
from tests.chance.hosts import HOSTS, HostsChance
from tests.chance.leaks import Kernel
from tests.chance.machine import Chance, run
from tests.chance.world import Shape
from tests.lab import missing

_TORCH = (Shape(2, framework=True), Shape(3, framework=True))


def main() -> int:
    """Run what was asked for; return 1 if something was not as it should be."""
    options = _options()
    # A shell's background jobs begin without Ctrl-C, which steps press.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="sky-") as folder:
        os.environ["JUPYTER_SKY_HOME"] = str(Path(folder) / "sky")
        adopt_orphans()
        try:
            with _machine(options) as kind:
                return _run(options, kind)
        finally:
            for command in end_descendants():
                print(f"left behind, and ended: {command[:100]}", file=sys.stderr)


@contextmanager
def _machine(options: argparse.Namespace) -> Iterator[type[Machine]]:
    """Have what steps are made on: clusters of this computer, or of hosts of the lab."""
    if not options.hosts:
        if options.torch:
            Chance.shapes = [*_TORCH]
        yield Chance
        return
    if reason := missing():
        raise SystemExit(reason)
    with switched_on(HOSTS) as lab:
        HostsChance.lab = lab
        if options.torch:
            HostsChance.shapes = [replace(each, agents=each.nodes) for each in _TORCH]
        yield HostsChance


def _run(options: argparse.Namespace, kind: type[Machine]) -> int:
    began, seed, kernel = time.monotonic(), options.seed, None
    while Machine.steps < options.steps or time.monotonic() - began < 60 * options.minutes:
        print(f"seed {seed}", file=Machine.log, flush=True)
        try:
            run(seed, clusters=10, steps=50, kind=kind)
            kernel = kernel or Kernel.now()
            kernel.check()
        except BaseException:
            more = "".join(f" --{each}" for each in ("torch", "hosts") if getattr(options, each))
            print(f"again: python -m tests.chance --seed {seed} --steps 1{more}", file=sys.stderr)
            raise
        seed += 1
    took = (time.monotonic() - began) / 60
    print(f"{Machine.steps} steps of seeds {options.seed} to {seed - 1} in {took:.0f} minutes")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chance", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=0, help="how many steps, at least")
    parser.add_argument("--minutes", type=float, default=0.0, help="for how long, at least")
    parser.add_argument("--torch", action="store_true", help="with process groups of torch")
    parser.add_argument("--hosts", action="store_true", help="on hosts of the lab, over SSH")
    return parser.parse_args()


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
