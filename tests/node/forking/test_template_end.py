"""How long a template stays that nobody asks."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys

SHORT_LIVED = """
import os, socket, sys
from jupyter_sky.node.forking import template
template.UNUSED_FOR = template._SETTLED = 0.5
agent, fork_server = socket.socketpair()
assert template.leave_template(sys.argv[1], fork_server.close, [], "ranks") is None
fork_server.close()
os.write(1, b"left")
agent.recv(1)  # until its end, unless something else has the other end still
"""


def test_a_template_ends_by_itself_and_holds_nothing_of_its_maker(tmp_path) -> None:
    place = tmp_path / "a.template"
    command = [sys.executable, "-c", SHORT_LIVED, str(place)]
    # The template has neither the pipe nor the socket: both are at their end with their maker.
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.stdout, done.stderr, done.returncode) == ("left", "", 0)
    # Others that look whether it is still alive do not keep it so.
    while place.exists():
        with socket.socket(socket.AF_UNIX) as sock, contextlib.suppress(OSError):
            sock.connect(str(place))
