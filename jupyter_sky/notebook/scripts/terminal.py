"""The user's own terminal, while a shell on a node is in it: ``jupyter sky shell``."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
from collections.abc import Iterator
from types import FrameType

from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.control.shells import Shell
from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import is_terminal

_PIECE = 64 * 1024
_CTRL_C = b"\x03"
_USUAL_TERM = "xterm-256color"


def check_terminal() -> None:
    """Refuse to go on where there is no terminal.

    Raises
    ------
    UsageError
        When the input or output of this process is none, or none that can be handed over.
    """
    if os.name == "nt":
        raise UsageError(
            "a shell of a node needs a terminal as Linux and macOS have it: use WSL, or Terminal "
            "in JupyterLab's sidebar where Jupyter's server runs on one of them."
        )
    if not (is_terminal(sys.stdin) and is_terminal(sys.stdout)):
        raise UsageError(
            "a shell of a node needs a terminal, and this is none: to run commands without one, "
            "use `%%sky --sh` in a cell."
        )


def run_shell(cluster: Cluster, rank: int) -> int:
    """Hand this terminal over to a shell on the node of a rank; return its exit status.

    Raises
    ------
    SkyError
        When there is none, or its node is not reached any longer.
    """
    size = os.get_terminal_size(1)
    term = os.environ.get("TERM") or _USUAL_TERM
    shell = cluster.shells.open(rank, term, size.lines, size.columns)
    try:
        with _handed_over(shell):
            while shell.status is None:
                _show(shell.read())
    finally:
        if shell.status is None:
            shell.close()
    return shell.status


@contextlib.contextmanager
def _handed_over(shell: Shell) -> Iterator[None]:
    """Let the terminal send each key as it is pressed, until the end of the block."""
    import termios
    import tty

    def end(number: int, frame: FrameType | None) -> None:
        sys.exit(128 + number)  # the terminal was closed: the shell ends with it

    def resized(number: int, frame: FrameType | None) -> None:
        size = os.get_terminal_size(1)
        shell.resize(size.lines, size.columns)

    handlers = {signal.SIGHUP: end, signal.SIGTERM: end, signal.SIGWINCH: resized}
    former = {each: signal.signal(each, handler) for each, handler in handlers.items()}
    settings = termios.tcgetattr(0)
    keys = _Keys(shell)
    try:
        tty.setraw(0, termios.TCSADRAIN)  # what was typed before is for the shell
        keys.start()
        yield
    finally:
        keys.stop()
        with contextlib.suppress(termios.error):  # of a terminal that is gone
            termios.tcsetattr(0, termios.TCSADRAIN, settings)
        for each, handler in former.items():
            signal.signal(each, handler)


class _Keys:
    """Takes what the user types to a shell, in a thread of its own."""

    def __init__(self, shell: Shell) -> None:
        self._shell = shell
        self._wake, self._woken = os.pipe()
        self._thread = threading.Thread(target=self._take, daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        os.close(self._woken)
        if self._thread.ident is not None:
            self._thread.join()
        os.close(self._wake)

    def _take(self) -> None:
        waits = False
        while True:
            ready, _, _ = select.select([0, self._wake], [], [])
            if self._wake in ready:
                return
            try:
                data = os.read(0, _PIECE)
            except OSError:
                data = b""
            if not data:
                os.kill(os.getpid(), signal.SIGHUP)
                return
            if not self._shell.is_reached:
                # The user sees nothing of what is typed now, and may want to get out.
                if _CTRL_C in data and waits:
                    os.kill(os.getpid(), signal.SIGTERM)
                    return
                waits = True
                _show(
                    f"\r\n[there is no connection to {self._shell.host} at the moment: it is made "
                    "again; Ctrl-C leaves the shell]\r\n".encode()
                )
            self._shell.type(data)


def _show(data: bytes) -> None:
    while data:
        data = data[os.write(1, data) :]
