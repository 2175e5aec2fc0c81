"""Processes of a script that cannot be ended."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest


@pytest.mark.skipif(os.getuid() != 0, reason="only root can act as another user")
def test_what_has_become_another_users_is_named_and_stop_does_not_wait_for_it(
    tmp_path: Path,
) -> None:
    # Rather than that the script becomes another user, the rank does.
    code = (
        "import os\n"
        "from jupyter_sky.node.rank.scripts import _StartedScript\n"
        "script = _StartedScript('run/0', deadline=0.5)\n"
        "script.start(['sleep', '1000'], {}, None)\n"
        "print(script._process.pid, flush=True)\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "script.stop()\n"
        "script.end_rest()\n"
        "print('went on', flush=True)\n"
        "os._exit(0)\n"
    )
    stdout, stderr = tmp_path / "stdout", tmp_path / "stderr"  # pipes would stay open
    with stdout.open("w") as out, stderr.open("w") as err:
        process = subprocess.Popen([sys.executable, "-c", code], stdout=out, stderr=err)
        process.wait()
    pid = int(stdout.read_text().split()[0])
    try:
        assert psutil.Process(pid).name() == "sleep"
    finally:
        os.kill(pid, signal.SIGKILL)
    assert stdout.read_text() == f"{pid}\nwent on\n"
    assert stderr.read_text() == (
        f"still running after the script, as another user: sleep ({pid}); run `sudo kill {pid}` "
        "on the node to end this.\n"
    )
