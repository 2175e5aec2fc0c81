"""The magics in plain IPython, in a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.notebook.kernels import without_colours

# A cell magic ends with two empty lines there.
SESSION = """\
%load_ext jupyter_sky
%%sky --nodes 2 --gather ranks
import torch.distributed as dist
ranks = dist.get_rank()
print("head", ranks)


print("gathered", ranks)
%%sky
1 / 0


%sky status
%sky down
"""


def test_a_session(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "IPython", "--simple-prompt", "--no-banner"],
        input=SESSION,
        env={**os.environ, "IPYTHONDIR": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    shown = without_colours(done.stdout)
    assert "group formed with torch" in shown
    assert "head 0\n" in shown
    assert "gathered [0, 1]\n" in shown
    assert "ZeroDivisionError: division by zero\non ranks 0-1 (node 0, node 1)" in shown
    assert re.search("rank 1 +node 1 +CPU +idle", shown)
    assert "ended, nothing of it is left" in shown
    assert "jupyter_sky/" not in shown
    assert done.returncode == 0, done.stderr
