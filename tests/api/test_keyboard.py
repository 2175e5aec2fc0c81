"""Questions to the user in a terminal."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

ASKS = """
import threading
from jupyter_sky.api.prompts.keyboard import Question
print("got", Question(threading.RLock()).ask("How many? ", False, lambda: True))
"""


def test_a_file_that_gets_the_output_does_not_get_the_question(tmp_path: Path) -> None:
    screen, terminal = pty.openpty()
    os.write(screen, b"3\n")
    with (tmp_path / "out.txt").open("w") as file:
        command = [sys.executable, "-c", ASKS]
        env = {**os.environ, "PYTHONPATH": str(ROOT)}
        subprocess.run(command, stdin=terminal, stdout=file, stderr=terminal, env=env, check=True)
    assert (tmp_path / "out.txt").read_text() == "got 3\n"
    assert b"How many? " in os.read(screen, 1000)
    os.close(terminal)
    os.close(screen)
