"""A machine with GPUs that are not there: a stand-in of NVIDIA's library answers for them.

It is no GPU: nothing is computed on it, and torch sees none. What it shows is how GPUs are found,
given to ranks and measured.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.paths import ROOT

GIB = 2**30

_PRELUDE = """
import json, os
from tests.cluster.cells import start
from tests.waiting import until


def seen(cells, known=lambda rank: rank["memory"] is not None):
    '''What the panel shows of each rank during a run, once that is known.'''
    run = cells.start("import threading; threading.Event().wait()")
    def view():
        ranks = cells.cluster.snapshot()["ranks"]
        return ranks if all(map(known, ranks)) else None
    found = until(view)
    cells.cluster.interrupt_run(run.id)
    assert cells.cluster.wait_until_idle(60)
    return found
"""


@dataclass(frozen=True)
class GPU:
    """A GPU of the stand-in; ``busy`` is in percent, ``None`` where the driver does not say."""

    uuid: str
    name: str = "NVIDIA H200"
    total: int = 140 * GIB
    used: int = 3 * GIB
    reserved: int = GIB
    busy: int | None = 37

    def line(self) -> str:
        busy = -1 if self.busy is None else self.busy
        return f"{self.uuid},{self.name},{self.total},{self.used},{self.reserved},{busy}\n"


class Machine:
    """A machine on which programs find the stand-in in place of NVIDIA's library.

    Parameters
    ----------
    folder
        Where the library is, and the file that says what GPUs there are.
    """

    def __init__(self, folder: Path) -> None:
        self.state = folder / "gpus"
        self._folder = folder

    def show(self, *gpus: GPU) -> None:
        """Have these GPUs from now on."""
        new = self._folder / "gpus.new"
        new.write_text("".join(each.line() for each in gpus))
        new.rename(self.state)

    def run(self, code: str, **variables: str) -> Any:
        """Run a program on it, and return the value of ``found`` at its end."""
        env = {name: each for name, each in os.environ.items() if not name.startswith("CUDA_")}
        paths = filter(None, [str(self._folder), env.get("LD_LIBRARY_PATH")])
        imports = filter(None, [str(ROOT), env.get("PYTHONPATH")])
        env |= {
            "LD_LIBRARY_PATH": os.pathsep.join(paths),
            "NVML_STAND_IN": str(self.state),
            "PYTHONPATH": os.pathsep.join(imports),
        }
        ended = "\nprint()\nprint(json.dumps(found))"
        done = subprocess.run(
            [sys.executable, "-c", _PRELUDE + textwrap.dedent(code) + ended],
            env={**env, **variables},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout.splitlines()[-1])


def build(folder: Path) -> Machine:
    """Compile the stand-in; the test is skipped where there is no compiler of C."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("the stand-in of NVIDIA's library is C, and there is no compiler `cc` here")
    library = folder / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("nvml.c")
    subprocess.run(
        [compiler, "-shared", "-fPIC", "-Wall", "-Werror", "-o", library, source], check=True
    )
    return Machine(folder)
