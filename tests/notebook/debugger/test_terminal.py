"""The debugger in a terminal's IPython: its prompt is that of the terminal."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.notebook.kernels import PATIENCE

pexpect = pytest.importorskip("pexpect", reason="pexpect is not installed")

_OPTIONS = ["-m", "IPython", "--simple-prompt", "--colors=NoColor", "--no-banner"]
_OF_ONE = "--cluster debugged --ranks 1"


class Terminal:
    """IPython in a terminal."""

    def __init__(self, folder: Path) -> None:
        self.process: Any = pexpect.spawn(
            sys.executable, _OPTIONS, encoding="utf-8", timeout=PATIENCE, cwd=str(folder)
        )

    def type(self, line: str) -> None:
        """Type a line where IPython waits for one."""
        self.process.expect(r"In \[\d+\]: ")
        self.process.sendline(line)

    def run(self, options: str, cell: str) -> None:
        """Run a cell on ranks."""
        self.type(f"get_ipython().run_cell_magic('sky', {options!r}, {cell!r})")

    def answer(self, prompt: str, answer: str) -> None:
        """Wait for a prompt, and answer it."""
        self.process.expect_exact(prompt)
        self.process.sendline(answer)

    def interrupt(self, expected: str) -> None:
        """Type Ctrl-C until something appears.

        Python does not notice one that comes between its writing of a prompt and its reading.
        """
        for _ in range(int(PATIENCE / 5)):
            self.process.sendintr()
            with contextlib.suppress(pexpect.TIMEOUT):
                self.process.expect_exact(expected, timeout=5)
                return
        pytest.fail(f"no {expected!r} came")


@pytest.fixture
def terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    monkeypatch.setenv("TERM", "dumb")
    terminal = Terminal(tmp_path)
    terminal.type("%load_ext jupyter_sky")
    terminal.type("%sky up --nodes 2 --plugin none --cluster debugged")
    yield terminal
    terminal.type("%sky down debugged")
    terminal.type("exit")
    terminal.process.expect(pexpect.EOF)
    terminal.process.close()


def test_it_asks_at_the_terminal(terminal: Terminal) -> None:
    head = "--cluster debugged --ranks 0"
    terminal.run(head, "import getpass\nprint(input('name? '), len(getpass.getpass()))")
    terminal.answer("name? ", "Ada")
    terminal.answer("Password: ", "s3cret")
    terminal.process.expect_exact("Ada 6")
    assert "s3cret" not in terminal.process.before
    terminal.run(_OF_ONE, "number = 3\nnumber / 0")
    terminal.process.expect_exact("on rank 1 (node 1)")
    terminal.type("%debug")
    terminal.answer("(Pdb) ", "p number")
    terminal.process.expect_exact("\r\n3\r\n")
    terminal.process.sendeof()


def test_ctrl_c_and_the_end_of_a_rank_end_it(terminal: Terminal) -> None:
    terminal.run(_OF_ONE, "import os\nprint('pid', os.getpid())\nbreakpoint()\nnumber = 4")
    terminal.process.expect(r"pid (\d+)\r")  # all of it: what is printed comes in pieces
    pid = int(terminal.process.match[1])
    terminal.process.expect_exact("(Pdb) ")
    terminal.interrupt("KeyboardInterrupt: rank 1 stopped after")
    terminal.run(_OF_ONE, "breakpoint()\nnumber = 4")
    terminal.process.expect_exact("(Pdb) ")
    os.kill(pid, signal.SIGKILL)
    terminal.process.expect_exact("RankLost: rank 1 is lost")
