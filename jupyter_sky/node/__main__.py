"""Start the agent of a node: ``python -m jupyter_sky.node FOLDER [--stay]``.

The folder contains ``spec.json``. Once the agent listens, the command prints one line of JSON about
it and leaves it running as a daemon in its own session. With ``--stay``, the command runs until the
agent ends, for agents that need something that ends with the command, like the file system of a
container.

Where the specification names a folder of templates, the agent is a fork of the one in it; if there
is none yet, the agent leaves one for further agents.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

from jupyter_sky.node.forking.start import replace_streams, start_fork_server
from jupyter_sky.transport.templates import asking


def main(folder: Path, stays: bool) -> None:
    """Start the agent as a daemon, and print its line of JSON when it is ready."""
    place = os.environ.pop(asking.PLACE, "")
    if not place and not stays:
        templates = json.loads((folder / "spec.json").read_text()).get("templates")
        place = asking.place_for_agents(templates, os.environ)
        line = asking.ask_for_agent(place, str(folder), dict(os.environ), str(Path.cwd()))
        if line is not None:
            _print_ready(line, "it ended before it was ready")
            return
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setsid()
        os.close(read)
        _become_agent(folder, write, place)
        # Exit without clean-up: in a fork of a template, tearing modules down would copy their
        # pages.
        os._exit(0)
    os.close(write)
    with open(read, "rb") as pipe:  # noqa: PTH123
        line = pipe.read()
    _print_ready(line, "" if line else _how_it_ended(pid))
    if stays:
        os.waitpid(pid, 0)


def _print_ready(line: bytes, otherwise: str) -> None:
    if not line:
        sys.exit(otherwise)
    sys.stdout.write(line.decode() + "\n")
    sys.stdout.flush()


def _how_it_ended(pid: int) -> str:
    """Say how an agent has ended that is not ready; its log says why, unless it was killed."""
    import signal
    import time

    for _ in range(100):  # where it has become a template for others, that process goes on
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended and os.WIFSIGNALED(status):
            return f"it was killed by {signal.Signals(os.WTERMSIG(status)).name}"
        if ended:
            break
        time.sleep(0.01)
    return "it ended before it was ready"


def _become_agent(folder: Path, ready_fd: int, place: str) -> None:
    _redirect(folder / "agent.log")
    text = (folder / "spec.json").read_text()
    # The fork server's imports take longest, so it starts before anything else is imported here,
    # even the modules that read the specification: dataclasses alone take 10 ms.
    sock, fork_server = start_fork_server(folder, json.loads(text))

    import gc
    import logging
    import resource

    # Imports make no garbage, and collecting it takes a fifth of their time.
    gc.disable()

    from jupyter_sky.node.agent import server, stale_files
    from jupyter_sky.node.agent.agent_log import AgentLog
    from jupyter_sky.node.forking.template import leave_template, write_command
    from jupyter_sky.node.network import interfaces
    from jupyter_sky.transport.certificates import fingerprint
    from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted
    from jupyter_sky.transport.templates.import_path import own_entries

    gc.freeze()
    gc.enable()

    def let_go() -> None:
        sock.close()
        os.close(ready_fd)

    if place and (wanted := leave_template(place, let_go, own_entries(), users="agents")):
        folder, ready_fd = wanted.folder, wanted.fd
        write_command(str(folder), fill="/")
        _redirect(folder / "agent.log")
        text = (folder / "spec.json").read_text()
        sock, fork_server = start_fork_server(folder, json.loads(text))
    logging.basicConfig(handlers=[AgentLog(folder / "agent.log")])
    # Only for the agent itself: the limit of ranks is up to the system and the user's code.
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    spec = AgentSpec.from_json(text)
    # Its own first: where the clock was set forward just now, they look old.
    for own in (folder, Path(spec.blobs)):
        stale_files.claim(own)
    stale_files.sweep(folder.parent)
    addr, interface = interfaces.local_address(spec.peer, spec.interface)

    def ready(port: int) -> None:
        shown = fingerprint(spec.credentials["certificate"]) if spec.credentials else ""
        started = AgentStarted(
            pid=os.getpid(), addr=addr, interface=interface, port=port, fingerprint=shown
        )
        os.write(ready_fd, json.dumps(started).encode())
        os.close(ready_fd)

    server.main(folder, spec, addr, sock, fork_server, ready)


def _redirect(log: Path) -> None:
    replace_streams(os.open(os.devnull, os.O_RDONLY), 0)
    replace_streams(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), 1, 2)


if __name__ == "__main__":
    main(Path(sys.argv[1]), stays="--stay" in sys.argv)
