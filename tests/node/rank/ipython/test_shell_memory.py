"""What a rank's shell keeps of the cells that it ran: no output, no error, and not every source.

Nor does it keep the folder in which it was made.
"""

from __future__ import annotations

import contextlib
import gc
import io
import linecache
import os
import re
import subprocess
import sys
import tracemalloc
from typing import Any, cast

from jupyter_sky.serialization import cell_sources
from tests.paths import ROOT

TIMES = 30
TEXT = 4_000  # characters that a cell prints
NOISE = 500
"""Bytes for each cell that are none of ours; an output that is kept has eight times as many.

IPython puts names into `builtins` for each cell and takes them out again, and Python makes that
table and others new at some time: several thousand bytes at once, however few cells there were.
"""
FAILS = f"print('x' * {TEXT})\ndef fail():\n    raise ValueError\nfail()"


_COLOUR = re.compile("\x1b\\[[0-9;]*m")


def test_a_shell_keeps_neither_output_nor_errors_nor_every_source() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.rank.ipython.test_shell_memory"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=300,
    )
    *kept, folders = done.stdout.splitlines()
    assert kept == ["flat", "bounded", "Cell In[1]: kept", "new"], done.stderr
    assert folders == "['/']", "`%cd -` leads to where the shell was made"


def main() -> None:
    """Run cells in a shell of this process, and print what it keeps of them."""
    from jupyter_sky.node.rank.ipython.shell import make_shell

    shell = make_shell()

    def fails(code: str, title: str) -> list[str]:
        """Run a cell that fails, and return its traceback."""
        with contextlib.redirect_stdout(io.StringIO()):
            error = shell.run(code, title, 0)
        assert error is not None
        return [_COLOUR.sub("", line) for line in shell.report(error)["traceback"]]

    def used(times: int) -> int:
        for n in range(times):
            fails(f"{FAILS} # {n % 10}", "In[2]")
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    shell.run("def kept(x):\n    return 1 / x", "In[1]", 0)
    tracemalloc.start()
    before = used(10)  # different ones
    grown = used(TIMES) - before
    print("flat" if grown < TIMES * NOISE else f"{grown / TIMES:.0f} bytes for each cell")
    tracemalloc.stop()

    for n in range(1_050):
        shell.run(f"n = {n}", f"In[{n}]", 0)
    sources = len(cell_sources.titles)
    is_bounded = sources < 600 and sources == sum("ipython-input" in one for one in _cached())
    print("bounded" if is_bounded else f"{sources} sources")
    # A function of the first cell is there still, and so is what it looks like.
    lines = "\n".join(fails("kept(0)", "In[9]"))
    print("Cell In[1]: kept" if "In[1]" in lines and "return 1 / x" in lines else lines)
    print("new" if "In[9]" in lines else lines)
    # It is made in a process that may have begun for another notebook, in the folder of that.
    os.chdir("/")
    shell.attach(cast(Any, None))
    print([str(folder) for folder in shell.user_ns["_dh"]])


def _cached() -> list[str]:
    return list(linecache.cache)


if __name__ == "__main__":
    main()
