"""What a template does while nobody asks it: it imports more, and ends."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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


IMPORTS_LATER = """
import json, os, socket, sys, time
from jupyter_sky.node.forking import template
from jupyter_sky.transport.templates import asking
from jupyter_sky.transport.templates.import_path import own_entries
template.UNUSED_FOR, template.LATER = 5, {"json": "colorsys"}
template._SETTLED = template._SOON = 0.01
place, load, rank = sys.argv[1], float(sys.argv[2]), sys.argv[3]
looked_at, looks = os.pipe()

def getloadavg():
    os.write(looks, b".")
    return load * os.cpu_count(), 0, 0

os.getloadavg = getloadavg
mine, other = socket.socketpair()
wanted = template.leave_template(place, other.close, own_entries(), "ranks")
if wanted:
    os.write(wanted.fd, str("colorsys" in sys.modules).encode())
    os._exit(0)
os.close(looks)
if not os.fork():
    if rank == "needs it":
        import colorsys
    template.tell_template()
    os._exit(0)
os.wait()

def has_imported():
    read, write = os.pipe()
    order = {"folder": "", "path": [], "env": {**os.environ}, "cwd": ""}
    assert asking.ask(place, [write], order)
    os.close(write)
    return os.read(read, 10).decode()

if rank == "needs it":
    while has_imported() == "False":
        time.sleep(0.1)  # it imports when nobody asks
else:
    for _ in range(1 if load < 0.5 else 2):  # it looks again and again
        os.read(looked_at, 1)
print(has_imported())
"""


@pytest.mark.parametrize(
    ("load", "rank", "imports"),
    [(0.1, "does without", "True"), (0.9, "does without", "False"), (0.9, "needs it", "True")],
)
def test_a_template_imports_more_only_where_it_is_needed_or_processors_are_free(
    tmp_path: Path, load: float, rank: str, imports: str
) -> None:
    place = tmp_path / "a.template"
    command = [sys.executable, "-c", IMPORTS_LATER, str(place), str(load), rank]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (done.stdout.strip(), done.stderr) == (imports, "")
