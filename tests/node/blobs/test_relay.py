"""Blobs on their way from agent to agent."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.lab.lab import missing
from tests.waiting import PATIENCE

VANISHES = """
import asyncio, subprocess, sys
from dataclasses import asdict
from pathlib import Path
from jupyter_sky.node.blobs.relay import BlobRelay
from jupyter_sky.node.blobs.store import BlobStore
from jupyter_sky.node.network import peers
from jupyter_sky.providers.mtls import issue_credentials
from jupyter_sky.serialization.blobs import PIECE, digest
from jupyter_sky.transport.certificates import fingerprint

peers.VANISHED_AFTER, peers.REACH_WITHIN = 4, 0.5

async def receive(stream):
    await stream.receive()
    await stream.send({"have": 0})
    await stream.receive(PIECE)
    # It has all of it, and its machine is gone before it says so.
    subprocess.run(["ip", "link", "set", "lo", "down"], check=True)
    await asyncio.Future()

async def main(folder):
    agents = []
    for name, each in zip("ab", credentials := issue_credentials(["a", "b"])):
        (folder / name).mkdir()
        agents.append(peers.PeerAgents(folder / name, receive))
        agents[-1].set_credentials(asdict(each))
    port = await agents[1].listen("127.0.0.1")
    shown = fingerprint(credentials[1].certificate)
    at = {"node": 1, "addr": "127.0.0.1", "port": port, "fingerprint": shown}
    store, data = BlobStore(folder, 10**9), bytes(1000)
    store.add(digest(data), 0, memoryview(data), len(data))
    print(*await BlobRelay(store, agents[0]).pass_on(digest(data), len(data), [at]))

subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
asyncio.run(main(Path(sys.argv[1])))
"""


def test_a_machine_that_vanishes_before_it_answers_did_not_get_a_blob(tmp_path: Path) -> None:
    if why := missing():
        pytest.skip(why)
    sender = ["unshare", "--net", sys.executable, "-c", VANISHES, str(tmp_path)]
    with subprocess.Popen(sender, stdout=subprocess.PIPE, text=True) as process:
        try:
            failed, _ = process.communicate(timeout=PATIENCE)
        finally:
            process.kill()
    assert failed == "1\n"
