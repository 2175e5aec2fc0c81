"""Another user of this computer: what they can open, read and connect to of a cluster."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_sky.cluster.inventory import kernel_files, owed_runs, registry
from jupyter_sky.cluster.inventory.kernel_files import KernelFile
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import AgentGone
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.local.machine import LocalMachine
from jupyter_sky.transport.bridge import NO_AGENT
from jupyter_sky.transport.frames import encode
from tests.cluster.conftest import Cells
from tests.node_processes import processes_of_node

NOBODY = 65534

TRY = """
import encodings.idna, json, os, socket, ssl, sys
user, wanted, ports, certificate, said = json.load(sys.stdin)
os.setgroups([])
os.setgid(user)
os.setuid(user)  # not earlier: others may not run this interpreter
done = []
for path in wanted:
    for what in ("open", "list", "connect", "write"):
        try:
            if what == "open":
                open(path, "rb").read(1)
            elif what == "list":
                os.listdir(path)
            elif what == "write":
                open(os.path.join(path, "planted"), "w")
            else:
                socket.socket(socket.AF_UNIX).connect(path)
            done.append([what, path])
        except OSError:
            pass
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
if certificate:
    context.load_cert_chain(certificate)
for port in ports:
    try:
        with socket.create_connection(("127.0.0.1", port)) as sock:
            with context.wrap_socket(sock) as secured:
                secured.sendall(bytes.fromhex(said))
                if secured.recv(1):
                    done.append(["answered", port])
    except OSError:
        pass
print(json.dumps(done))
"""


def attempts(
    paths: list[str], ports: list[int], user: int = NOBODY, certificate: str = ""
) -> list[Any]:
    """Return what another user gets done with paths and ports, with a certificate or without."""
    hello = encode({"op": "hello"}).hex()
    said = subprocess.run(
        [sys.executable, "-I", "-c", TRY],
        input=json.dumps([user, paths, ports, certificate, hello]),
        capture_output=True,
        text=True,
        cwd="/",
    )
    assert said.returncode == 0, said.stderr
    found: list[Any] = json.loads(said.stdout)
    return found


@pytest.fixture
def street(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that everybody can enter, as homes are in many places."""
    if os.getuid() != 0:
        pytest.skip("only root can act as another user")
    folder = Path(tempfile.mkdtemp(prefix="sky-"))
    folder.chmod(0o755)
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(folder / "home"))
    yield folder
    shutil.rmtree(folder)


def test_another_user_opens_and_reaches_nothing(street: Path, new: Callable[..., Cells]) -> None:
    cells = new(2, framework=False, provider=Local(machines=2))
    cells.namespace["data"] = bytes(100_000)
    cells.run("print('secret')\nx = data", names=["data"], values={0: ["x"]})
    owed_runs.record(cells.cluster.id, "0a", owed_runs.OwedRun("a run", {0: ["x"]}))
    kernel_files.write(street, KernelFile("0b", "n.ipynb", 0.0))
    row = registry.find(cells.cluster.name)
    assert row is not None
    places = [street, *(Path(each[name]) for each in row.machines for name in ("folder", "blobs"))]
    paths = [path for place in places for path in (place, *place.rglob("*"))]
    names = {path.name for path in paths}
    assert {"agent.sock", "spec.json", "journal", "registry.sqlite", "0a.json", "0b.json"} <= names
    assert any(path.parent.name.startswith(cells.cluster.id) for path in paths)
    agents = [psutil.Process(each["pid"]) for each in row.machines]
    everyone = [process for each in agents for process in processes_of_node(each)]
    environments = [f"/proc/{each.pid}/environ" for each in everyone]
    ports = [node.port for node in cells.cluster.state.nodes]
    open_to_all = [["list", str(street)]]  # by the test
    assert attempts([*map(str, paths), *environments], ports) == open_to_all


TAKE = """
import os, pickle, sys
folder, told = sys.argv[1:]
os.mkdir(folder)
os.chmod(folder, 0o777)
print("taken", flush=True)
class Command:
    def __reduce__(self):
        return os.system, (f"id -u >{told}",)
done = set()
while True:
    for name in set(os.listdir(folder)) - done:
        if len(name) == 64:
            size = os.stat(f"{folder}/{name}").st_size
            with open(f"{folder}/new", "wb") as file:
                file.write(pickle.dumps(Command()).ljust(size, b"0"))
            os.rename(f"{folder}/new", f"{folder}/{name}")
            done.add(name)
"""


def test_a_folder_in_shared_memory_that_another_user_takes_is_not_used(
    street: Path, new: Callable[..., Cells], tmp_path: Path
) -> None:
    """systemd removes it with the last session of its user, and everybody has seen its name."""
    cells = new(1, framework=False, provider=Local(machines=1))
    row = registry.find(cells.cluster.name)
    assert row is not None
    folder, told = Path(row.machines[0]["blobs"]), street / "told"
    told.touch()
    shutil.rmtree(folder)
    words = ["/usr/bin/python3", "-I", "-c", TAKE, str(folder), str(told)]
    with subprocess.Popen(
        words, user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE, cwd="/"
    ) as other:
        try:
            assert other.stdout
            assert other.stdout.readline() == b"taken\n"
            cells.namespace["words"] = [f"word {n}" for n in range(30_000)]
            with pytest.raises(SkyError, match=f"another user of the node has taken {folder}"):
                cells.run("n = len(words)", names=["words"])
        finally:
            other.kill()
            shutil.rmtree(folder, ignore_errors=True)
    assert told.read_text() == ""


LISTEN = """
import os, socket, sys
[folder] = sys.argv[1:]
os.makedirs(folder)
listener = socket.socket(socket.AF_UNIX)
listener.bind(f"{folder}/agent.sock")
listener.listen()
print("listening", flush=True)
while True:
    found, _ = listener.accept()
    print(found.recv(1000), flush=True)
"""


def test_who_listens_in_place_of_an_agent_is_told_nothing(street: Path) -> None:
    """After a reboot, what was in /tmp is gone, and its names are known."""
    street.chmod(0o1777)
    folder = street / "jupyter-sky-0" / "0a-0"
    words = ["/usr/bin/python3", "-I", "-c", LISTEN, str(folder)]
    with subprocess.Popen(
        words, user=NOBODY, group=NOBODY, extra_groups=[], stdout=subprocess.PIPE, cwd="/"
    ) as other:
        try:
            assert other.stdout
            assert other.stdout.readline() == b"listening\n"
            machine = LocalMachine(folder, folder, 1, ())
            with pytest.raises(AgentGone, match="a program of another user listens there"):
                asyncio.run(machine.open())
            # As on hosts and on nodes of Slurm.
            words = [sys.executable, "-m", "jupyter_sky.node.bridge", f"{folder}/agent.sock"]
            done = subprocess.run(words, input=b"hello", capture_output=True)
            assert (done.stdout, done.returncode) == (b"", NO_AGENT)
            assert [other.stdout.readline() for _ in range(2)] == [b"b''\n"] * 2
        finally:
            other.kill()


def test_this_test_sees_what_others_can_open(street: Path) -> None:
    (street / "seen").write_text("x")
    (street / "seen").chmod(0o644)
    assert attempts([str(street / "seen")], []) == [["open", str(street / "seen")]]
