"""A kernel that can be killed: ``python -m tests.faults.other_kernel NAME``.

It starts a cluster, and follows a run that prints numbers without end.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.conftest import Cells
from tests.paths import ROOT

COUNTING = "import time\nfor n in range(10**6):\n    print(n, flush=True)\n    time.sleep(0.01)"


@contextlib.contextmanager
def running_kernel(name: str) -> Iterator[subprocess.Popen[bytes]]:
    """Start the kernel; its run has printed something then."""
    command = [sys.executable, "-m", "tests.faults.other_kernel", name]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE) as kernel:
        try:
            assert kernel.stdout
            assert kernel.stdout.readline() == b"inside\n"
            yield kernel
        finally:
            kernel.kill()


def main(name: str) -> None:
    """Start the cluster, and follow the run."""
    spec, runtime_env = assemble(ClusterSpec(name=name, nodes=2), [])
    cells = Cells(Cluster.start(spec, Local(), runtime_env))
    run = cells.start(COUNTING)
    told = False

    def tell(event: object) -> None:
        nonlocal told
        if not told:
            told = True
            print("inside", flush=True)

    run.follow(tell)


if __name__ == "__main__":
    main(sys.argv[1])
