"""Serve many agents in one process: ``python -m tests.benchmarks.light FOLDER ...``.

Each folder holds the ``spec.json`` of an agent. For each that listens a line of JSON says so; the
process ends with the last of them, or with its parent.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import socket
import sys
from pathlib import Path

from jupyter_sky.node.agent.server import Agent
from jupyter_sky.node.forking.fork_server import end_with_parent
from jupyter_sky.transport.certificates import fingerprint
from jupyter_sky.transport.protocol.agent_spec import AgentSpec, AgentStarted
from tests.benchmarks.light.ranks import NO_PROCESS, LightForkServer

ADDRESS = "127.0.0.1"


async def main(folders: list[Path]) -> None:
    """Serve the agents of all folders until the last has ended."""
    await asyncio.gather(*map(_serve, folders))


async def _serve(folder: Path) -> None:
    spec = AgentSpec.from_json((folder / "spec.json").read_text())
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    LightForkServer(theirs)

    def ready(port: int) -> None:
        shown = fingerprint(spec.credentials["certificate"]) if spec.credentials else ""
        started = AgentStarted(
            pid=os.getpid(), addr=ADDRESS, interface="lo", port=port, fingerprint=shown
        )
        print(json.dumps({str(folder): started}), flush=True)

    await Agent(folder, spec, ours, NO_PROCESS).serve(ADDRESS, ready)


if __name__ == "__main__":
    end_with_parent()
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    asyncio.run(main([Path(argument) for argument in sys.argv[1:]]))
