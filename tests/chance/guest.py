"""Another kernel, in a process that can be killed: ``python -m tests.chance.guest NAME``.

It attaches to a cluster. With ``--inside`` it also runs a cell there without end.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence

from jupyter_sky.providers.local import Local
from jupyter_sky.providers.ssh.provider import SSH
from tests.faults.other_kernel import COUNTING
from tests.faults.parts import attach
from tests.paths import ROOT


@contextlib.contextmanager
def guest(name: str, runs: bool, hosts: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
    """Have another kernel attached to a cluster, and its cell inside if it runs one."""
    options = ["--hosts", *hosts, *(["--inside"] if runs else [])]
    command = [sys.executable, "-m", "tests.chance.guest", name, *options]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as kernel:
        try:
            assert kernel.stdout
            assert kernel.stdout.readline() == b"there\n", "the other kernel did not come"
            yield kernel
        finally:
            kernel.kill()


def main(name: str, runs: bool, hosts: Sequence[str]) -> None:
    """Attach, say so, and stay."""
    cells = attach(name, SSH(hosts) if hosts else Local())
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
    parser = argparse.ArgumentParser("python -m tests.chance.guest", description=__doc__)
    parser.add_argument("name")
    parser.add_argument("--inside", action="store_true", help="run a cell")
    parser.add_argument("--hosts", nargs="*", help="where its nodes are; else they are local")
    options = parser.parse_args()
    main(options.name, options.inside, options.hosts)
