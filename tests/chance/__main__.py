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
from pathlib import Path

from tests.benchmarks.processes import adopt_orphans, end_descendants
from tests.chance.leaks import Kernel
from tests.chance.machine import Chance, run
from tests.chance.world import Shape

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
            return _run(options)
        finally:
            for command in end_descendants():
                print(f"left behind, and ended: {command[:100]}", file=sys.stderr)


def _run(options: argparse.Namespace) -> int:
    began, seed, kernel = time.monotonic(), options.seed, None
    if options.torch:
        Chance.shapes = [*_TORCH]
    while Chance.steps < options.steps or time.monotonic() - began < 60 * options.minutes:
        print(f"seed {seed}", file=Chance.log, flush=True)
        try:
            run(seed, clusters=10, steps=50)
            kernel = kernel or Kernel.now()
            kernel.check()
        except BaseException:
            torch = " --torch" if options.torch else ""
            print(f"again: python -m tests.chance --seed {seed} --steps 1{torch}", file=sys.stderr)
            raise
        seed += 1
    took = (time.monotonic() - began) / 60
    print(f"{Chance.steps} steps of seeds {options.seed} to {seed - 1} in {took:.0f} minutes")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser("python -m tests.chance", description=__doc__)
    parser.add_argument("--seed", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=0, help="how many steps, at least")
    parser.add_argument("--minutes", type=float, default=0.0, help="for how long, at least")
    parser.add_argument("--torch", action="store_true", help="with process groups of torch")
    return parser.parse_args()


if __name__ == "__main__":
    faulthandler.enable()
    sys.exit(main())
