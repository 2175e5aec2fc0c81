"""What runs on hosts: ranks and their places, neighbours, networks, and what others see of it."""

from __future__ import annotations

import json
import os
import re
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.cluster.errors import Interrupted
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.network.ports.port_socket import open_port
from jupyter_sky.providers import node_defaults
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.frames import encode
from tests.faults import limits
from tests.lab import Lab
from tests.waiting import PATIENCE, until


def test_one_host_needs_no_network(lab: Lab, start) -> None:
    cells = start("lab1:2")
    cells.run("import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [2.0] * 2
    # Its agent needs no other, and ranks of torch listen everywhere.
    [node] = cells.cluster.state.nodes
    assert node.port == 0
    listening = {address for address, _ in lab.hosts[0].listening()}
    own = {lab.hosts[0].address, f"[{lab.hosts[0].address6}]"}
    assert listening <= {*own, "127.0.0.1", "[::ffff:127.0.0.1]", "*"}


def test_clusters_on_the_same_hosts_do_not_meet_and_hosts_can_have_several_ranks(start) -> None:
    both = [start("lab1:2,lab2"), start("lab1,lab2")]
    for number, cells in enumerate(both):
        cells.run("import os, socket, torch, torch.distributed as dist")
        cells.run(f"x = torch.ones(1) * {number + 1} + dist.get_rank()\ndist.all_reduce(x)")
    places = both[0].ask("(socket.gethostname(), os.environ['LOCAL_RANK'])")
    assert places == [("lab1", "0"), ("lab1", "1"), ("lab2", "0")]
    assert both[0].ask("x.item()") == [6.0] * 3
    both[0].cluster.down()
    assert both[1].ask("x.item()") == [5.0] * 2


def test_the_next_agent_on_a_host_has_nothing_to_import(lab: Lab, start) -> None:
    first = start("lab1", framework=False)
    [template] = until(lambda: lab.hosts[0].processes("template: .* agents need"))
    already = {child.pid for child in template.children()}
    second = start("lab1", env={"TESTED": "second"}, framework=False)
    [forked] = [child for child in template.children() if child.pid not in already]
    row = registry.find(second.cluster.name)
    assert row is not None
    assert forked.cmdline()[-1].rstrip("/") == row.machines[0]["folder"]
    first.cluster.down()
    assert second.ask("__import__('os').environ['TESTED']") == ["second"]
    second.cluster.down()
    assert psutil.wait_procs([forked], PATIENCE)[0]
    assert template.is_running()


def test_the_next_start_on_a_host_asks_it_for_little(
    start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Far away, each command takes three times as long as the way there and back."""
    start("lab1", framework=False).cluster.down()
    commands: list[str] = []
    command = SSHConnection._start

    def noted(connection: SSHConnection, asked: str) -> object:
        commands.append(asked)
        return command(connection, asked)

    monkeypatch.setattr(SSHConnection, "_start", noted)
    assert start("lab1", framework=False).ask("1 + 1") == [2]
    # What it is, whether its Python will do, and the start of the agent.
    assert len(commands) == 3


def test_users_on_one_host_do_not_meet(lab: Lab, client: Path, shelf: Path) -> None:
    version = ".".join(map(str, sys.version_info[:2]))
    usual = subprocess.run(["/usr/bin/python3", "--version"], capture_output=True, text=True)
    if not usual.stdout.startswith(f"Python {version}."):
        pytest.skip(f"no Python {version} on this machine that every user can run")
    image = sky.Image(pip_indexes=[str(shelf)])

    @sky.compute
    def who() -> tuple[str, str]:
        import os
        from pathlib import Path

        return os.environ["USER"], str(Path.cwd())

    with (
        sky.ComputePool(provider=sky.SSH("lab3"), image=image, name="mine") as mine,
        sky.ComputePool(provider=sky.SSH("ada@lab3"), image=image, name="hers") as hers,
    ):
        home = lab.hosts[2].folder / "home"
        assert who() @ mine == [("root", str(home / "root" / "jupyter-sky" / "mine"))]
        assert who() @ hers == [("ada", str(home / "ada" / "jupyter-sky" / "hers"))]


def test_the_network_between_nodes_can_be_chosen(lab: Lab, start) -> None:
    addresses = lab.add_network()
    try:
        usual = start("lab1,lab2", framework=False)
        assert [node.addr for node in usual.cluster.state.nodes] == [
            host.address for host in lab.hosts[:2]
        ]
        usual.cluster.down()
        # The other network does not lead from one to the other: the chosen one has to.
        lab.hosts[0].block(lab.hosts[1])
        lab.hosts[1].block(lab.hosts[0])
        cells = start("lab1,lab2", interface="eth1")
        nodes = cells.cluster.state.nodes
        assert [(node.addr, node.interface) for node in nodes] == [
            (addresses["lab1"], "eth1"),
            (addresses["lab2"], "eth1"),
        ]
        cells.run("import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)")
        assert cells.ask("x.item()") == [2.0] * 2
        with pytest.raises(sky.SkyError, match="there is no interface ib0 with an address, but"):
            start("lab1,lab2", interface="ib0")
    finally:
        for host in lab.hosts[:2]:
            host.speed_up()
        lab.remove_network()


@pytest.fixture
def without_ipv4(lab: Lab, client: Path) -> Iterator[None]:
    """Two hosts that have only addresses of IPv6, by the names of ``~/.ssh/config``."""
    pair = lab.hosts[:2]
    if pair[0].address6 not in pair[0].addresses:
        pytest.skip("this machine has no IPv6")
    config = "".join(f"Host {host.name}\n  HostName {host.address6}\n" for host in pair)
    (client / "config").write_text(f"{config}Host *\n  User root\n")
    for host in pair:
        host.run("ip", "-4", "address", "flush", "dev", "eth0")
    yield
    for host in pair:
        host.run("ip", "address", "add", f"{host.address}/24", "dev", "eth0")
        host.run("ip", "route", "add", "default", "via", host.gateway)


@pytest.mark.usefixtures("without_ipv4")
def test_hosts_that_have_only_ipv6(lab: Lab, start) -> None:
    cells = start("lab1,lab2:2")
    cells.run("import torch, torch.distributed as dist\nx = torch.ones(1)\ndist.all_reduce(x)")
    assert cells.ask("x.item()") == [3.0] * 3
    assert [node.addr for node in cells.cluster.state.nodes] == [
        host.address6 for host in lab.hosts[:2]
    ]
    cells.namespace["data"] = np.arange(3_000_000)
    assert cells.ask("int(data.sum())", names=["data"]) == [int(np.arange(3_000_000).sum())] * 3
    # Stop reaches who waits in a collective, over these addresses too.
    run = cells.start("dist.barrier() if dist.get_rank() else __import__('time').sleep(600)")
    run.stop()
    run.follow()
    with pytest.raises(Interrupted):
        run.values()
    assert cells.ask("x.item()") == [3.0] * 3


def test_an_address_of_ipv6_can_be_typed(lab: Lab, start) -> None:
    host = lab.hosts[0]
    if host.address6 not in host.addresses:
        pytest.skip("this machine has no IPv6")
    cells = start(f"[{host.address6}]:2", framework=False)
    assert cells.ask("__import__('socket').gethostname()") == ["lab1"] * 2


def answers_strangers(address: str, port: int) -> bool:
    """Return whether an agent says anything to who has no certificate of its cluster."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((address, port), 5) as plain,
            context.wrap_socket(plain) as stream,
        ):
            stream.sendall(encode({"op": "hello"}))
            return bool(stream.recv(1))
    except OSError:
        return False


def test_what_others_on_the_host_and_on_the_wire_can_see(lab: Lab, start, tmp_path: Path) -> None:
    secret = "qv7-secret-token"
    wires = [host.wire for host in lab.hosts[:3]]
    captures = [tmp_path / f"{wire}.pcap" for wire in wires]
    recorders = [
        subprocess.Popen(
            f"tcpdump -U -q -B 16384 -i {wire} -w {path} port not 53".split(),
            stderr=subprocess.PIPE,
        )
        for wire, path in zip(wires, captures, strict=True)
    ]
    try:
        for recorder in recorders:
            assert recorder.stderr is not None
            recorder.stderr.readline()
        cells = start("lab1,lab2,lab3", framework=False, env={"API_TOKEN": secret})
        cells.namespace["data"] = (secret * 200_000).encode()
        cells.run("import os\nprint(os.environ['API_TOKEN'], len(data))", names=["data"])
        assert cells.text() == f"{secret} {len(cells.namespace['data'])}\n"
        nodes = {node.name: node for node in cells.cluster.state.nodes}
        for host in lab.hosts[:3]:
            assert not host.processes(secret)
            ports = {port for address, port in host.listening() if address == host.address}
            # sshd, the agent, and on the head where ranks meet.
            assert len(ports) == (3 if host is lab.hosts[0] else 2)
            [port] = {port for port in ports if port == nodes[host.name].port}
            folder = host.agent_folders()[0]
            assert folder.stat().st_mode & 0o077 == 0
            assert secret not in (folder / "agent.log").read_text()
            assert not answers_strangers(host.address, port)
        assert secret not in json.dumps([row.spec for row in registry.rows()])
        cells.cluster.down()
        # A recorder writes what has come while it waited, and lets go of what came too fast.
        for path in captures:
            until(lambda path=path: path.stat().st_size > len(secret) * 20_000)
    finally:
        for recorder in recorders:
            recorder.terminate()
            recorder.wait()
    for path in captures:
        content = path.read_bytes()
        assert not re.search(rb"secret-token|API_TOKEN|jupyter_sky", content)


def test_data_that_memory_has_no_room_for_goes_to_the_disk(
    lab: Lab, start, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(node_defaults, "ENOUGH_SHARED_MEMORY", 100 * 2**20)
    host = lab.hosts[0]
    host.run("mount", "-o", "remount,size=110m", "/dev/shm")
    # The lab's hosts are in memory as a whole.
    host.run("mount", "--bind", str(tmp_path), str(host.folder / "tmp"))
    try:
        cells = start("lab1,lab2", framework=False)
        cells.run("import numpy as np")
        for name in ("one", "two"):
            cells.namespace[name] = np.random.default_rng().integers(0, 255, 35_000_000, np.uint8)
            cells.run("pass", names=[name])
        totals = [int(cells.namespace[name].sum()) for name in ("one", "two")]
        assert cells.ask("(int(one.sum()), int(two.sum()))") == [tuple(totals)] * 2
        links = host.run("find", "/dev/shm", "-type", "l").split()
        assert len(links) == 1
        assert not lab.hosts[1].run("find", "/dev/shm", "-type", "l").split()
        cells.cluster.down()
        left = (tmp_path / f"jupyter-sky-{os.getuid()}").glob("*")
        assert not [path for path in left if path.suffix != ".template"]
    finally:
        host.run("umount", "--lazy", str(host.folder / "tmp"))
        host.run("mount", "-o", "remount,size=50%", "/dev/shm")


def test_data_that_the_first_host_has_no_room_for_is_said_not_to_arrive(lab: Lab, start) -> None:
    cells = start("lab1,lab2", framework=False)
    agent = lab.hosts[0].processes("jupyter_sky[.]node /")[0]
    cells.namespace["large"] = os.urandom(3_000_000)
    with limits.full_disk(agent, 1_000_000), pytest.raises(sky.SkyError, match="did not arrive"):
        cells.run("len(large)", names=["large"])
    assert cells.ask("len(large)", names=["large"]) == [3_000_000] * 2


def test_what_the_user_writes_on_a_host_stays(lab: Lab, start) -> None:
    cells = start("lab1", framework=False)
    cells.run("open('checkpoint', 'w').write('step 1')")
    name = cells.cluster.name
    cells.cluster.down()
    written = lab.hosts[0].home / "jupyter-sky" / name / "checkpoint"
    assert written.read_text() == "step 1"
    # As open to others as what the user writes there.
    assert written.stat().st_mode & 0o777 == 0o644
    assert not lab.hosts[0].processes("jupyter_sky")
    assert not lab.hosts[0].agent_folders()
    assert "jupyter-sky" not in lab.hosts[0].run("ls", "/dev/shm")


def test_dask_runs_on_hosts_that_the_notebook_reaches_over_ssh_alone(
    lab: Lab, start, tmp_path: Path
) -> None:
    pytest.importorskip("distributed")
    from jupyter_sky.plugins.dask_cluster.deployment import deployed
    from jupyter_sky.plugins.dask_cluster.settings import WorkerOptions

    cells = start("lab1,lab2", framework=False)
    with deployed(cells.cluster, WorkerOptions()) as deployment:
        client = deployment.client
        data = np.arange(1_000_000)
        total = client.submit(np.sum, client.scatter(data)).result()
        assert total == data.sum()
        assert set(client.run(socket.gethostname).values()) == {"lab1", "lab2"}
        # On each host, Dask listens at the address of the cluster alone.
        addresses = list(client.scheduler_info(n_workers=-1)["workers"])
        assert {each.split("/")[2].split(":")[0] for each in addresses} == {
            host.address for host in lab.hosts[:2]
        }

        def work(number: int) -> int:
            import time

            (tmp_path / f"begun-{number}").touch()
            while not (tmp_path / "go").exists():
                time.sleep(0.05)
            return number * number

        # A link that breaks costs time: tasks go on, and what is asked for meanwhile comes later.
        futures = client.map(work, range(2, 4))
        until(lambda: len(list(tmp_path.glob("begun-*"))) == 2)
        lab.unplug()
        try:
            until(lambda: "no connection to " in cells.cluster.snapshot()["cluster"]["note"])
            (tmp_path / "go").touch()
            another = client.submit(sum, [3, 4])
        finally:
            lab.plug_in()
        assert client.gather([*futures, another]) == [4, 9, 7]


def test_a_port_where_nothing_listens_is_one_sentence(lab: Lab, start) -> None:
    cells = start("lab1", framework=False)
    [connection] = cells.cluster._controller.connections
    with pytest.raises(OSError, match="lab1: nothing answers at port 9: Connection refused"):
        event_loop.wait(open_port(connection, "127.0.0.1", 9))
