"""What works with ssh in a terminal works here: the ports, keys and known hosts that users have."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tests.lab import Host, Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.test_connecting import connect, write


@contextlib.contextmanager
def at_port(host: Host, port: int, lab: Lab, client: Path) -> Iterator[None]:
    """Have the server of a host listen at another port as well, and reach it there alone."""
    key = " ".join((host.folder / "etc" / "host_key.pub").read_text().split()[:2])
    with (client / "known_hosts").open("a") as known:
        known.write(f"[{host.address}]:{port} {key}\n")
    drop = ["INPUT", "-p", "tcp", "--dport", "22", "-s", lab.address, "-j", "REJECT"]
    with host.configured(f"Port 22\nPort {port}"):
        host.run("iptables", "-A", *drop)
        try:
            yield
        finally:
            host.run("iptables", "-D", *drop)


# Many networks let nothing out but the web: their SSH servers listen at 443.


def test_a_jump_host_at_the_port_of_the_web(lab: Lab, client: Path) -> None:
    first, second = lab.hosts[:2]
    config = (client / "config").read_text()
    with at_port(first, 443, lab, client):
        for way in (f"{first.name}:443", f"ssh://{first.name}:443"):
            write(client, f"Host {second.name}\n  ProxyJump {way}\n{config}")
            assert connect(second.name) == second.name


def test_a_node_at_the_port_of_the_web(lab: Lab, client: Path, notebook: LiveNotebook) -> None:
    host = lab.hosts[0]
    with at_port(host, 443, lab, client):
        cell = notebook.succeed(
            "%%sky --hosts lab1:443:2 --plugin none --gather where\n"
            "import socket\nwhere = socket.gethostname()"
        )
        assert notebook.value("where") == ["lab1", "lab1"], cell
        assert "could not be reached" not in notebook.succeed("%sky down").stdout
    assert not host.processes("jupyter_sky")
