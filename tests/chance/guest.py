"""Another kernel, in a process that can be killed: ``python -m tests.chance.guest NAME``.

It attaches to a cluster. With ``inside`` behind the name it also runs a cell there without end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator

from tests.faults.other_kernel import COUNTING
from tests.faults.parts import attach
from tests.paths import ROOT


@contextlib.contextmanager
def guest(name: str, runs: bool) -> Iterator[subprocess.Popen[bytes]]:
    """Have another kernel attached to a cluster, and its cell inside if it runs one."""
    command = [sys.executable, "-m", "tests.chance.guest", name, *(["inside"] if runs else [])]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as kernel:
        try:
            assert kernel.stdout
            assert kernel.stdout.readline() == b"there\n", "the other kernel did not come"
            yield kernel
        finally:
            kernel.kill()


def main(name: str, runs: bool) -> None:
    """Attach, say so, and stay."""
    cells = attach(name)
    told = threading.Event()

    def tell(event: object = None) -> None:
        if not told.is_set():
            told.set()
            print("there", flush=True)

    if runs:
        cells.start(COUNTING).follow(tell)
    tell()
    threading.Event().wait()


if __name__ == "__main__":
    main(sys.argv[1], "inside" in sys.argv[2:])
