"""Start the agent of a node: ``python -m jupyter_sky.node FOLDER``.

The folder holds ``spec.json``. The command returns when the agent listens, prints one line of JSON
about it, and leaves it behind as a daemon with a session of its own.
"""

from __future__ import annotations

import json
import os
import socket
import sys
from pathlib import Path
from typing import Any


def main(folder: Path) -> None:
    """Start the agent, tell when it is ready, and leave it behind."""
    ready, tell = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(ready)
        _become_agent(folder, tell)
        return
    os.close(tell)
    with open(ready, "rb") as pipe:  # noqa: PTH123
        line = pipe.read()
    if not line:
        sys.exit(f"the agent did not start; {folder / 'agent.log'} says why")
    sys.stdout.write(line.decode() + "\n")


def _become_agent(folder: Path, tell: int) -> None:
    _redirect(folder / "agent.log")
    spec = json.loads((folder / "spec.json").read_text())
    # The fork server's imports take longest, so it starts before anything else is imported here.
    ours, fork_server = _start_fork_server(folder, spec)

    from jupyter_sky.node.agent import server, stale_files
    from jupyter_sky.node.network import interfaces

    stale_files.sweep(folder.parent)
    for mine in (folder, Path(spec["blobs"])):
        stale_files.claim(mine)
    addr, interface = interfaces.place(spec["peer"], spec["interface"])

    def ready(port: int) -> None:
        about = {"pid": os.getpid(), "addr": addr, "interface": interface, "port": port}
        os.write(tell, json.dumps(about).encode())
        os.close(tell)

    server.main(folder, spec, addr, ours, fork_server, ready)


def _redirect(log: Path) -> None:
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    fd = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(fd, 1)
    os.dup2(fd, 2)


def _start_fork_server(folder: Path, spec: dict[str, Any]) -> tuple[socket.socket, int]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.set_inheritable(True)
    fork_server = [sys.executable, "-P", "-m", "jupyter_sky.node.fork_server"]
    command = [*fork_server, str(theirs.fileno()), str(folder)]
    pid = os.posix_spawn(sys.executable, command, {**os.environ, **spec["env"]})
    theirs.close()
    return ours, pid


if __name__ == "__main__":
    main(Path(sys.argv[1]))
