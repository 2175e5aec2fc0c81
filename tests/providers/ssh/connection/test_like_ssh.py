"""What works with ssh in a terminal works here: the ports, keys and known hosts that users have."""

from __future__ import annotations

import contextlib
import re
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.handshake import open_socket
from jupyter_sky.providers.ssh.connection.ssh_config import read_login
from jupyter_sky.providers.ssh.connection.targets import parse_one
from tests.lab import Host, Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.test_connecting import connect, write


@contextlib.contextmanager
def at_port(host: Host, port: int, lab: Lab, client: Path) -> Iterator[None]:
    """Have the server of a host listen at another port as well, and reach it there alone."""
    with (client / "known_hosts").open("a") as known:
        known.write(f"[{host.address}]:{port} {key_of(host)}\n")
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


# Known hosts


def key_of(host: Host) -> str:
    return " ".join((host.folder / "etc" / "host_key.pub").read_text().split()[:2])


@pytest.mark.parametrize("word", ["accept-new", "no", "off"])
def test_a_new_host_is_noted_where_the_configuration_says_so(
    lab: Lab, client: Path, word: str
) -> None:
    (client / "known_hosts").unlink()
    config = (client / "config").read_text()
    write(client, f"StrictHostKeyChecking {word}\nHashKnownHosts no\n{config}")
    assert connect("lab1") == "lab1"
    assert (
        client / "known_hosts"
    ).read_text() == f"{lab.hosts[0].address} {key_of(lab.hosts[0])}\n"
    # From then on it is known, to ssh as well, and another key is another machine.
    write(client, config)
    assert connect("lab1") == "lab1"
    (client / "known_hosts").write_text(f"{lab.hosts[0].address} {key_of(lab.hosts[1])}\n")
    write(client, f"StrictHostKeyChecking {word}\n{config}")
    with pytest.raises(SkyError, match="its host key has changed"):
        connect("lab1")


def test_names_of_hosts_are_hashed_where_the_configuration_says_so(lab: Lab, client: Path) -> None:
    (client / "known_hosts").unlink()
    config = (client / "config").read_text()
    write(client, f"StrictHostKeyChecking accept-new\nHashKnownHosts yes\n{config}")
    assert connect("lab1") == "lab1"
    assert (client / "known_hosts").read_text().startswith("|1|")
    write(client, config)
    assert connect("lab1") == "lab1"


def test_machines_that_come_and_go_are_known_nowhere(lab: Lab, client: Path) -> None:
    """As `vagrant ssh-config` and many guides of clouds write it."""
    config = (client / "config").read_text()
    lines = "StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null"
    write(client, f"Host lab1\n  {lines}\n{config}")
    (client / "known_hosts").write_text(f"{lab.hosts[0].address} {key_of(lab.hosts[1])}\n")
    assert connect("lab1") == "lab1"


def test_a_key_that_is_known_without_a_port_holds_at_each(lab: Lab, client: Path) -> None:
    first, second = lab.hosts[:2]
    known = client / "known_hosts"
    with first.configured("Port 22\nPort 2222"):
        assert connect("lab1:2222") == "lab1"
        known.write_text(f"{first.address} {key_of(second)}\n")
        with pytest.raises(SkyError, match="its host key is not known"):
            connect("lab1:2222")
        # What is known of this port comes first.
        known.write_text(
            f"{first.address} {key_of(first)}\n[{first.address}]:2222 {key_of(second)}\n"
        )
        with pytest.raises(SkyError, match="its host key has changed"):
            connect("lab1:2222")


# The configuration


def test_variables_in_the_names_of_files(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = (client / "config").read_text()
    (client / "id_ed25519").rename(client / "my key")
    (client / "known_hosts").rename(client / "known")
    monkeypatch.setenv("MINE", str(client))
    lines = 'IdentityFile "${MINE}/my key"\nUserKnownHostsFile ${MINE}/known'
    write(client, f"{lines}\n{config}")
    assert connect("lab1") == "lab1"
    write(client, f"{lines}\nCertificateFile ${{NOWHERE}}/x\n{config}")
    with pytest.raises(SkyError, match=r"cannot be used: \$\{NOWHERE\} in it is no variable"):
        connect("lab1")
    write(client, f"UserKnownHostsFile none\n{config}")
    assert not any("none" in str(each) for each in read_login(parse_one("lab1")).known_hosts)


def test_names_that_are_to_be_completed_with_nothing_stay(client: Path) -> None:
    write(client, "CanonicalizeHostname yes\nHost gpu\n  Port 7\n")
    assert read_login(parse_one("gpu")).port == 7


def at_home(folder: Path, monkeypatch: pytest.MonkeyPatch, config: str) -> Path:
    """Give this user another home, with a configuration; return that file."""
    monkeypatch.setenv("HOME", str(folder))
    path = folder / ".ssh" / "config"
    path.parent.mkdir()
    path.write_text(config)
    return path


@pytest.mark.parametrize(
    ("line", "applies"),
    [
        ("Match final all", True),
        ("Match all", True),
        ("Match Final host 10.0.0.1", True),
        ("Match Host gpu2", False),
        ("match originalHost=gpu* !User ada", True),
        ("Match LocalUser nobody-here", False),
        ("  Match !LocalUser nobody-here # as a comment", True),
        ("Match User ada,bob", False),
    ],
)
def test_blocks_apply_as_those_of_ssh_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, applies: bool
) -> None:
    """Red Hat's systems, and Fedora, have `Match final all` in /etc/ssh/ssh_config.d."""
    more = tmp_path / "more"
    more.write_text("  Port 7\n")
    begin = "Host gpu1\n  HostName 10.0.0.1\n"
    path = at_home(tmp_path, monkeypatch, f"{begin}{line}\n  Include {more}\nHost *\n  User eve\n")
    said = subprocess.run(["ssh", "-G", "-F", path, "gpu1"], capture_output=True, text=True).stdout
    options = dict(each.split(" ", 1) for each in said.splitlines() if " " in each)
    login = read_login(parse_one("gpu1"))
    assert (login.address, login.user, login.port == 7) == ("10.0.0.1", "eve", applies)
    assert (login.user, str(login.port)) == (options["user"], options["port"])


@pytest.mark.parametrize(
    ("line", "applies"),
    [
        ("Match tagged work", True),
        ("Match tagged w*,!work", False),
        ("Match !tagged home,away", True),
        ("Match localnetwork 10.99.0.0/16,127.0.0.0/8 host 10.*", True),
        ("Match localnetwork 10.99.0.0/16", False),
        ("Match !localnetwork 127.0.0.0/8", False),
        ("Match sessiontype shell", False),
        ("Match sessiontype exec final", True),
        ("Match command rsync*", False),
    ],
)
def test_blocks_that_only_newer_versions_of_ssh_know(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, line: str, applies: bool
) -> None:
    config = f"Host gpu1\n  HostName 10.0.0.1\n  Tag work\n{line}\n  Port 7\n"
    at_home(tmp_path, monkeypatch, config)
    assert (read_login(parse_one("gpu1")).port == 7) is applies


@pytest.mark.parametrize(
    ("lines", "came_from"),
    [
        ("AddressFamily inet", "127.0.0.1"),
        ("AddressFamily inet6", "::1"),
        ("AddressFamily inet\n  BindAddress 127.0.0.5", "127.0.0.5"),
    ],
)
def test_the_configuration_chooses_the_addresses_of_a_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, came_from: str
) -> None:
    both = [(socket.AF_INET6, "::1"), (socket.AF_INET, "127.0.0.1")]
    at_home(tmp_path, monkeypatch, f"Host gpu\n  HostName localhost\n  {lines}\n")
    with socket.create_server(("127.0.0.1", 0)) as four:
        port = four.getsockname()[1]
        try:
            six = socket.create_server(("::1", port), family=socket.AF_INET6)
        except OSError:
            pytest.skip("this machine has no IPv6")
        answers = [(family, socket.SOCK_STREAM, 6, "", (address, port)) for family, address in both]
        # Names of both kinds are those of a network: here, whatever is in /etc/hosts.
        usual = socket.getaddrinfo

        def found(host: str, *rest: Any, **more: Any) -> Any:
            if host != "localhost":
                return usual(host, *rest, **more)
            family = rest[1] if len(rest) > 1 else more.get("family", 0)
            return [each for each in answers if family in (0, each[0])]

        monkeypatch.setattr(socket, "getaddrinfo", found)
        with six, open_socket(read_login(parse_one(f"gpu:{port}"))):
            listener = six if ":" in came_from else four
            listener.settimeout(5)
            assert listener.accept()[1][0] == came_from


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        (
            "AddressFamily inet6",
            "^127.0.0.1 has no address of the kind inet6, which AddressFam",
        ),
        ("BindAddress 192.0.2.1", "cannot be reached .from 192.0.2.1, which BindAddress in"),
        ("BindAddress nowhere.invalid", "cannot be reached .from nowhere.invalid, which BindAddr"),
    ],
)
def test_addresses_that_cannot_be_had_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lines: str, said: str
) -> None:
    at_home(tmp_path, monkeypatch, f"Host gpu\n  HostName 127.0.0.1\n  {lines}\n")
    with pytest.raises(HostError, match=said):
        open_socket(read_login(parse_one("gpu")))


def test_comments_at_the_end_of_lines(lab: Lab, client: Path) -> None:
    config = (client / "config").read_text()
    write(
        client,
        f'Host big # and * else\n  HostName "{lab.hosts[0].address}" # the one with "eight"\n'
        f"  Port 22\t# as usual\n  User root #\n{config}",
    )
    assert connect("big") == "lab1"
    assert read_login(parse_one("else")).address == "else"


@pytest.mark.parametrize(
    "line",
    ["Port 7 # x", "Port 7\t#x", "Port 7", 'User "a # b" # c', "User a#b", "HostName a # 'b"],
)
def test_comments_are_those_of_ssh(client: Path, line: str) -> None:
    write(client, f"Host gpu\n  {line}\n")
    said = subprocess.run(
        ["ssh", "-G", "-F", client / "config", "gpu"], capture_output=True, text=True
    ).stdout
    options = dict(each.split(" ", 1) for each in said.splitlines() if " " in each)
    ours = read_login(parse_one("gpu"))
    assert (ours.user, str(ours.port)) == (options["user"], options["port"])
    assert ours.address == options["hostname"]


# Names


@pytest.mark.parametrize("name", ["gpu..lab", ".lab", f"{'a' * 64}.lab"])
def test_what_can_be_no_name_is_no_host(client: Path, name: str) -> None:
    with pytest.raises(SkyError, match=f"no host is named {re.escape(name)}: add it to"):
        connect(name)


def test_a_name_that_cannot_be_looked_up_at_this_time(
    client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", away)
    with pytest.raises(SkyError, match="which address gpu has: is this computer in a network"):
        connect("gpu")
