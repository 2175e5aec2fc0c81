"""Connecting: what ssh would do, and one sentence with what to do where it does not work."""

from __future__ import annotations

import asyncio
import contextlib
import platform
import re
import shlex
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from threading import Barrier

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.providers.ssh.connection import connection as ssh_connection
from jupyter_sky.providers.ssh.connection import handshake, users
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.keys import authentication
from jupyter_sky.providers.ssh.connection.ssh_config import CONNECT_WITHIN, read_login
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.host_threads import HostThreads
from jupyter_sky.providers.ssh.setup.facts import gather_facts
from jupyter_sky.providers.ssh.setup.host_progress import HostProgress
from jupyter_sky.transport import event_loop
from jupyter_sky.transport.bridge import MARK
from tests.lab import Lab, relay
from tests.lab.host import command, make_key
from tests.providers.ssh.conftest import cut, impatient
from tests.waiting import until

# A process of the SSH server that serves a login; OpenSSH 9.8 and newer have a program for it.
_SESSION = r"sshd(-session)?: root"


def connect(host: str) -> str:
    """Connect as a cluster does, in a thread that is not the user's; return the host's name."""

    def hello() -> str:
        connection = SSHConnection(parse_one(host))
        try:
            return connection.run("hostname").strip()
        finally:
            connection.close()

    async def elsewhere() -> str:
        import asyncio

        return await asyncio.to_thread(hello)

    return event_loop.wait(elsewhere())


def write(client: Path, text: str) -> None:
    (client / "config").write_text(text)


# The configuration


def test_the_configuration_is_read_as_ssh_reads_it(lab: Lab, client: Path) -> None:
    (client / "conf.d").mkdir()
    (client / "conf.d" / "lab").write_text(
        f"Host inner\n  HostName {lab.hosts[1].address}\n  Port 2200\nHost *\n  Port 2300\n"
    )
    write(
        client,
        "Host outer\n  Include conf.d/*\n  User ada\n"
        "Include conf.d/*\n"
        'Match host "10.213.*"\n  User bob\n'
        "Host *\n  User root\n  IdentityFile ~/.ssh/special\n",
    )
    shutil.copy(client / "id_ed25519", client / "special")
    assert read_login(parse_one("outer")).user == "ada"
    assert read_login(parse_one("outer")).port == 2300
    inner = read_login(parse_one("inner"))
    assert (inner.address, inner.port, inner.user) == (lab.hosts[1].address, 2200, "bob")
    assert read_login(parse_one("eve@inner:2400")).user == "eve"
    assert read_login(parse_one("eve@inner:2400")).port == 2400
    assert read_login(parse_one("inner")).identity_files == (client / "special",)


def test_it_agrees_with_ssh(lab: Lab, client: Path) -> None:
    (client / "more").write_text("Host b*\n  User ada\n  ProxyJump lab1,lab2\n  Port 2201\n")
    config = "Include more\nHost a\n  Include more\n  Port 99\n  ConnectTimeout 1m30\n"
    config += "Host *\n  User root\n  Port 7\n"
    write(client, config)
    for name in ("a", "b", "c"):
        said = subprocess.run(
            ["ssh", "-G", "-F", client / "config", name], capture_output=True, text=True
        ).stdout
        options = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
        ours = read_login(parse_one(name))
        assert (ours.user, str(ours.port)) == (options["user"], options["port"])
        assert ",".join(ours.jumps) == options.get("proxyjump", "")
        theirs = options["connecttimeout"].replace("none", f"{CONNECT_WITHIN}")
        assert ours.connect_within == float(theirs)


def test_a_host_behind_others(lab: Lab, client: Path) -> None:
    first, second, third = lab.hosts[:3]
    third.run("iptables", "-A", "INPUT", "-s", lab.address, "-j", "DROP")
    try:
        config = (client / "config").read_text()
        write(client, f"Host {third.name}\n  ProxyJump {first.name},{second.name}\n{config}")
        assert connect(third.name) == third.name
    finally:
        third.speed_up()


def test_a_jump_host_for_all_hosts_is_reached_without_itself(lab: Lab, client: Path) -> None:
    first, second = lab.hosts[:2]
    config = (client / "config").read_text()
    write(
        client, f"{config}Host outside\n  HostName {first.address}\nHost *\n  ProxyJump outside\n"
    )
    assert read_login(parse_one(second.name)).jumps == ("outside",)
    assert read_login(parse_one(first.name)).jumps == ()
    assert connect(second.name) == second.name
    assert connect(first.name) == first.name


def test_jump_hosts_that_lead_to_each_other_are_refused(lab: Lab, client: Path) -> None:
    first, second, third = lab.hosts[:3]
    config = (client / "config").read_text()
    for host, jump in ((first, second), (second, third), (third, second)):
        config = f"Host {host.name}\n  ProxyJump {jump.name}\n{config}"
    write(client, config)
    with pytest.raises(sky.SkyError, match="its jump hosts lead to each other .*`ProxyJump none`"):
        connect(first.name)


def test_a_jump_host_that_leads_nowhere_says_why(lab: Lab, client: Path) -> None:
    first, second = lab.hosts[:2]
    config = (client / "config").read_text()
    write(client, f"Host {second.name}\n  ProxyJump {first.name}\n{config}")
    with first.configured("AllowTcpForwarding no"):
        with pytest.raises(sky.SkyError, match="lab1 may not be jumped through, by") as caught:
            connect(second.name)
        # What it says to write does work.
        [command] = re.findall(r"`(ProxyCommand .*)`", str(caught.value))
        ssh = f"ssh -F {client / 'config'} -i {client / 'id_ed25519'}"
        ssh += f" -o UserKnownHostsFile={client / 'known_hosts'}"
        way = command.replace("ssh", ssh, 1).replace(
            "nc %h %p", f"{sys.executable} -S -E {relay.__file__} %h %p -"
        )
        write(client, f"Host {second.name}\n  {way}\n{config}")
        assert connect(second.name) == second.name
    write(client, f"Host {second.name}\n  ProxyJump {first.name}\n  Port 9\n{config}")
    with pytest.raises(sky.SkyError, match="from lab1, .* port 9 cannot be reached: is the"):
        connect(second.name)


def test_a_jump_host_is_left_with_the_last_host_behind_it(lab: Lab, client: Path) -> None:
    first, second, third = lab.hosts[:3]
    config = (client / "config").read_text()
    write(client, f"Host {second.name} {third.name}\n  ProxyJump {first.name}\n{config}")
    connections = [pool.get(parse_one(host.name)) for host in (second, third)]
    for connection in connections:
        connection.run("true")
    assert first.processes(_SESSION)
    connections[0].close_if_unused()
    assert connections[1].run("hostname").strip() == third.name
    connections[1].close_if_unused()
    until(lambda: not first.processes(_SESSION))


def test_a_connection_that_nobody_needs_is_closed(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a link breaks at the moment when its cluster ends, nobody else is left to do so."""
    monkeypatch.setattr(users, "UNUSED_FOR", 0.3)
    first, second = lab.hosts[:2]
    config = (client / "config").read_text()
    write(client, f"Host {second.name}\n  ProxyJump {first.name}\n{config}")
    connection = pool.get(parse_one(second.name))
    transport = connection.connect()
    assert connection.run("sleep 1; echo here") == "here\n"
    until(lambda: not transport.is_active() and not first.processes(_SESSION))
    assert connection.run("echo again") == "again\n"


def test_a_connection_that_leads_nowhere_any_more_is_made_again(lab: Lab, client: Path) -> None:
    """The laptop has slept, and a router on the way has forgotten the connection."""
    host, target = lab.hosts[0], parse_one(lab.hosts[0].name)
    _, port = pool.get(target).connect().sock.getsockname()[:2]
    host.run("iptables", "-A", "INPUT", "-p", "tcp", "--sport", str(port), "-j", "DROP")
    try:
        assert pool.get(target).run("hostname").strip() == host.name
    finally:
        host.speed_up()


@pytest.mark.parametrize("way", ["alone", "behind another host"])
def test_a_connection_that_agents_use_is_made_again_too_where_it_is_silent(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """The laptop is in another network, and tries to reach its nodes before it knows that."""
    monkeypatch.setattr(ssh_connection, "_HEARD_WITHIN", 0.1)
    first, host = lab.hosts[:2] if way == "behind another host" else [lab.hosts[0]] * 2
    if first is not host:
        config = (client / "config").read_text()
        write(client, f"Host {host.name}\n  ProxyJump {first.name}\n{config}")
    way_there = {pool.get(parse_one(each.name)) for each in (first, host)}
    ours, outer = pool.get(parse_one(host.name)), pool.get(parse_one(first.name))
    transport = ours.connect()
    for each in way_there:
        each._users.add("the link of an agent")
    _, port = outer.connect().sock.getsockname()[:2]
    # Both ways: what the server still has to say would be heard.
    for chain, ports in ("INPUT", "--sport"), ("OUTPUT", "--dport"):
        first.run("iptables", "-A", chain, "-p", "tcp", ports, str(port), "-j", "DROP")
    try:
        until(lambda: transport.silent_for > 0.5)
        assert ours.run("hostname").strip() == host.name
    finally:
        first.speed_up()
        for each in way_there:
            each._users.discard("the link of an agent")
            each.close()


def test_a_connection_is_not_closed_under_who_makes_it(lab: Lab, client: Path) -> None:
    """What was left of another cluster there was removed at that moment."""
    host = lab.hosts[0]
    connection = SSHConnection(parse_one(host.name))
    [server] = host.processes(r"\[listener\]")
    server.suspend()  # the system accepts connections, nobody answers
    try:
        with ThreadPoolExecutor(1) as threads:
            making = threads.submit(connection.connect)
            until(lambda: host.address in peers())
            connection.close_if_unused()
            server.resume()
            assert making.result().is_active()
    finally:
        server.resume()
        connection.close()


def peers() -> set[str]:
    """Return the addresses to which this process is connected."""
    return {each.raddr.ip for each in psutil.Process().net_connections("inet4") if each.raddr}


def test_a_login_without_a_shell_is_named_as_that(lab: Lab, client: Path) -> None:
    users = lab.hosts[0].folder / "etc" / "passwd"
    before = users.read_text()
    users.write_text(re.sub("(ada:.*):/bin/sh", r"\1:/usr/sbin/nologin", before))
    try:
        with pytest.raises(HostError, match="its login shell runs no commands .This account is"):
            connect("ada@lab1")
        # Nor has one without an error that ends in a file which it reads first.
        users.write_text(re.sub("(ada:.*):/bin/sh", r"\1:/bin/bash", before))
        start_file = lab.hosts[0].folder / "home" / "ada" / ".bashrc"
        start_file.write_text("exit\n")
        with pytest.raises(HostError, match="its login shell runs no commands .it printed nothing"):
            connect("ada@lab1")
        # Nor one that takes what is for the command, or has another shell take it.
        for does in ("cat", "read line", "exec bash"):
            start_file.write_text(f"{does}\n")
            connection = SSHConnection(parse_one("ada@lab1"))
            with pytest.raises(HostError, match=r"~/.bashrc, may end it, start another shell or"):
                gather_facts(connection)
            connection.close()
        start_file.unlink()
    finally:
        users.write_text(before)


def test_a_start_file_may_print_at_the_end_too_and_leave_a_process(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    users, start_file = host.folder / "etc" / "passwd", host.folder / "home" / "ada" / ".bashrc"
    before = users.read_text()
    users.write_text(re.sub("(ada:.*):/bin/sh", r"\1:/bin/bash", before))
    start_file.write_text("echo hello; trap 'echo bye' EXIT; sleep 600 &\n")
    connection = SSHConnection(parse_one("ada@lab1"))
    try:
        assert connection.run("cat; echo heard >&2", b"words") == "words"
        with pytest.raises(CommandError, match="^no such way$"):
            connection.run("echo no such way >&2; exit 3", ends_with_us=True)
        # It may leave room for no other process.
        start_file.write_text("ulimit -u 1\n")
        with pytest.raises(CommandError, match="^it lets you start no more processes: end some of"):
            connection.run("true | cat")
        start_file.write_text("echo 'bash: fork: Resource temporarily unavailable' >&2; exit 254\n")
        with pytest.raises(HostError, match="^it lets you start no more processes"):
            connection.run("true")
    finally:
        connection.close()
        for each in host.processes("sleep 600"):
            each.kill()
        start_file.unlink()
        users.write_text(before)


_LIKE_CSH = r"""#!/bin/sh
case $2 in
    *"
"* | *!*) echo "Unmatched quote." >&2; exit 1 ;;
esac
exec /bin/sh "$@"
"""


def test_a_login_shell_need_not_be_like_sh(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    shell = host.folder / "bin" / "like-csh"
    shell.write_text(_LIKE_CSH)
    shell.chmod(0o755)
    users = host.folder / "etc" / "passwd"
    before = users.read_text()
    users.write_text(re.sub("(ada:.*):/bin/sh", rf"\1:{shell}", before))
    connection = SSHConnection(parse_one("ada@lab1"))
    try:
        said = connection.run("cat\nprintf '%s ' \"$# it's é!\" '\\n'", b"data, ")
        assert said == "data, 0 it's é! \\n "
        with pytest.raises(CommandError, match="no such way"):
            connection.run("echo no such way\nexit 3", b"")
    finally:
        connection.close()
        users.write_text(before)


# Keys


@pytest.mark.parametrize("kind", ["ed25519", "ecdsa", "rsa"])
def test_kinds_of_keys(lab: Lab, client: Path, kind: str) -> None:
    (client / "id_ed25519").unlink()
    lab.authorize(make_key(client / f"id_{kind}_new", kind))
    shutil.move(client / f"id_{kind}_new", client / f"id_{kind}")
    assert connect("lab1") == "lab1"


def test_a_certificate(lab: Lab, client: Path) -> None:
    key = make_key(client / "certified")
    write(client, (client / "config").read_text() + f"  IdentityFile {key}\n")
    with pytest.raises(sky.SkyError, match="it accepts none of 1 keys for root: run `ssh-copy-id"):
        connect("lab1")
    lab.certify(key)
    assert connect("lab1") == "lab1"


@pytest.fixture
def agent(client: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """An ssh-agent; what it is called with is added to it."""
    socket = client / "agent"
    words = ["ssh-agent", "-D", "-a", str(socket)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    until(socket.exists)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(socket))
    yield lambda key: subprocess.run(["ssh-add", "-q", str(key)], check=True) and None
    process.kill()
    process.wait()


def test_the_agent_is_asked(client: Path, agent: Callable[[Path], None]) -> None:
    agent(client / "id_ed25519")
    for path in client.glob("id_*"):
        path.unlink()
    assert connect("lab1") == "lab1"


def test_the_right_key_comes_first_among_many(
    lab: Lab, client: Path, agent: Callable[[Path], None]
) -> None:
    for number in range(8):  # a server hangs up after six
        agent(make_key(client / f"other{number}"))
    agent(client / "id_ed25519")
    assert connect("lab1") == "lab1"


def test_a_passphrase_is_asked_for_once(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in client.glob("id_*"):
        path.unlink()
    lab.authorize(make_key(client / "id_ed25519", passphrase="correct horse"))
    answers = iter(["wrong", "correct horse"])
    asked: list[str] = []

    def answer(prompt: str) -> str:
        asked.append(prompt)
        return next(answers)

    # In a notebook the user types it into a field that the kernel asks the browser for.
    monkeypatch.setattr("getpass.getpass", answer)
    assert connect("lab1") == "lab1"
    assert connect("lab2") == "lab2"
    place = f"Passphrase for {client / 'id_ed25519'}: "
    assert asked == [place, f"Wrong passphrase. {place}"]


@pytest.mark.parametrize("answers", [["wrong"] * 3, [""]])
def test_hosts_that_need_a_key_which_stays_locked_ask_once_and_say_so(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch, answers: list[str]
) -> None:
    (client / "id_ed25519").unlink()
    key = make_key(client / "id_ed25519", passphrase="correct horse")
    lab.authorize(key)
    asked: list[str] = []
    waiting: list[Path] = []

    def answer(prompt: str) -> str:
        until(lambda: len(waiting) >= 2)
        asked.append(prompt)
        return answers[len(asked) - 1]

    def unlock(path: Path) -> object:
        waiting.append(path)
        return usual(path)

    usual = authentication._unlock
    monkeypatch.setattr(authentication, "_unlock", unlock)
    monkeypatch.setattr("getpass.getpass", answer)
    with pytest.raises(sky.SkyError) as caught:
        sky.ComputePool(provider=sky.SSH("lab1,lab2"), nodes=2).__enter__()
    said = (
        f"the key {key} stayed locked (wrong or no passphrase): run this again to be asked "
        f"once more, or `ssh-add {key}` in a terminal"
    )
    assert [line.strip() for line in str(caught.value).splitlines()] == [
        "2 of 2 hosts cannot be used:",
        f"lab1: {said}",
        f"lab2: {said}",
    ]
    assert len(asked) == len(answers)
    # Whoever runs it again is asked again.
    answers += ["correct horse"]
    assert connect("lab1") == "lab1"


# Whose host it is


def test_an_unknown_host_is_refused_until_the_user_accepts_it(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    (client / "known_hosts").write_text("")
    with pytest.raises(sky.SkyError) as caught:
        connect(host.name)
    said = subprocess.run(
        ["ssh-keygen", "-l", "-f", host.folder / "etc" / "host_key.pub"],
        capture_output=True,
        text=True,
    ).stdout
    assert said.split()[1] in str(caught.value)
    [accept] = re.findall(r"`!(.*?)`", str(caught.value))
    subprocess.run(["sh", "-c", accept], check=True)
    assert connect(host.name) == host.name


def test_a_changed_host_key_is_refused(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    other = (lab.hosts[1].folder / "etc" / "host_key.pub").read_text()
    (client / "known_hosts").write_text(f"{host.address} {other}")
    with pytest.raises(sky.SkyError, match="its host key has changed.*ssh-keygen -R"):
        connect(host.name)


def test_hashed_names_and_other_ports(lab: Lab, client: Path) -> None:
    host, known = lab.hosts[0], client / "known_hosts"
    redirect = ["-p", "tcp", "--dport", "2222", "-j", "REDIRECT", "--to-ports", "22"]
    host.run("iptables", "-t", "nat", "-A", "PREROUTING", *redirect)
    usual = known.read_text()
    try:
        known.write_text("")
        with pytest.raises(sky.SkyError, match=r"not known.*'\[10\.213\..*\]:2222 ssh-ed25519"):
            connect("lab1:2222")
        key = " ".join((host.folder / "etc" / "host_key.pub").read_text().split()[:2])
        known.write_text(f"{usual}[{host.address}]:2222 {key}\n")
        hashing = ["ssh-keygen", "-q", "-H", "-f", known]
        subprocess.run(hashing, check=True, capture_output=True)
        assert host.address not in known.read_text()
        assert connect("lab1:2222") == "lab1"
    finally:
        host.run("iptables", "-t", "nat", "-F")
    assert connect("lab1") == "lab1"


# Certificates of hosts


def trust(lab: Lab, client: Path, patterns: str, authority: str = "ca") -> None:
    """Have ``known_hosts`` trust who signs for hosts of these names, and know nothing else."""
    key = (lab.folder / "keys" / f"{authority}.pub").read_text()
    (client / "known_hosts").write_text(f"@cert-authority {patterns} {key}")


@pytest.mark.parametrize("patterns", ["*", "10.213.*", "gpu?,10.213.*", "*,!10.214.*"])
def test_who_is_trusted_says_whose_key_it_is(lab: Lab, client: Path, patterns: str) -> None:
    trust(lab, client, patterns)
    assert connect("lab1") == "lab1"


def test_an_authority_for_other_hosts_says_nothing(lab: Lab, client: Path) -> None:
    for patterns in ("gpu*", "*,!10.213.*"):
        trust(lab, client, patterns)
        with pytest.raises(sky.SkyError, match="its host key is not known"):
            connect("lab1")


def test_an_authority_that_is_revoked_says_nothing(lab: Lab, client: Path) -> None:
    trust(lab, client, "*")
    known = client / "known_hosts"
    known.write_text(known.read_text() + known.read_text().replace("@cert-authority", "@revoked"))
    with pytest.raises(sky.SkyError, match="host key"):
        connect("lab1")


def test_a_certificate_of_another_authority_is_refused(lab: Lab, client: Path) -> None:
    make_key(lab.folder / "keys" / "stranger")
    trust(lab, client, "*", authority="stranger")
    try:
        with pytest.raises(sky.SkyError, match="is signed by nobody whom known_hosts trusts"):
            connect("lab1")
    finally:
        for path in (lab.folder / "keys").glob("stranger*"):
            path.unlink()


@pytest.mark.parametrize(
    ("name", "valid", "trouble"),
    [
        ("10.213.99.99", "-1d:+1d", "is for 10.213.99.99 and not for 10.213."),
        ("*", "-2d:-1d", "is not valid at this time: has it expired"),
        ("*", "-1d:+1d", ""),
    ],
)
def test_what_a_certificate_says_is_heeded(
    lab: Lab, client: Path, name: str, valid: str, trouble: str
) -> None:
    host = lab.hosts[0]
    authority = lab.folder / "keys" / "ca"
    trust(lab, client, "*")
    try:
        host.certify(authority, name, valid=valid)
        host.restart_sshd()
        if trouble:
            with pytest.raises(sky.SkyError, match=f"its host certificate {trouble}"):
                connect(host.name)
        else:
            assert connect(host.name) == host.name
    finally:
        host.certify(authority, *host.addresses)
        host.restart_sshd()


# What is said of all at once


def test_every_host_that_cannot_be_used_is_named_with_its_reason(
    lab: Lab, client: Path, start
) -> None:
    good, silent, deaf = lab.hosts[:3]
    silent.run("iptables", "-A", "INPUT", "-p", "tcp", "--dport", "22", "-j", "DROP")
    for server in deaf.processes("sshd"):
        server.kill()
    text = f"{good.name},{silent.name},{deaf.name},eve@{lab.hosts[3].name},no-such-machine"
    try:
        with pytest.raises(sky.SkyError) as caught, impatient(client, silent):
            start(text)
    finally:
        silent.speed_up()
        deaf.restart_sshd()
    lines = str(caught.value).splitlines()
    assert lines[0] == "4 of 5 hosts cannot be used:"
    assert re.match(r"  lab2: .* port 22 did not answer within 1 s: is the machine on", lines[1])
    assert re.match(r"  lab3: nothing listens at .* port 22: is its SSH server running", lines[2])
    assert re.match(r"  eve@lab4: it accepts none of \d keys for eve", lines[3])
    assert re.match(r"  no-such-machine: no host is named no-such-machine", lines[4])
    assert not good.processes("jupyter_sky")


def test_an_interpreter_that_will_not_do(lab: Lab, client: Path) -> None:
    old = lab.hosts[0].folder / "bin" / "python3.10"
    old.write_text("#!/bin/sh\necho 'Unknown option: -P\nusage: python3.10 [option]' >&2\nexit 2\n")
    old.chmod(0o755)
    version = re.escape(platform.python_version())
    for python, said in (
        (
            str(old),
            f"is older than Python 3.11: name one with the notebook's .* {version}, or leave",
        ),
        ("/usr/bin/no-such-python", "cannot be used as Python"),
        ("/usr/bin/python3", "has no .*IPython.*: install `jupyter-sky` there, or leave out"),
    ):
        with pytest.raises(sky.SkyError, match=said):
            sky.ComputePool(provider=sky.SSH("lab1", python=python)).__enter__()


def test_what_works_on_hosts_has_ended_when_a_launch_is_stopped(lab: Lab, client: Path) -> None:
    targets = [parse_one(host.name) for host in lab.hosts[:2]]
    progress = HostProgress([str(each) for each in targets], lambda text: None)
    threads = HostThreads(targets, progress)
    begun, ended = Barrier(len(targets) + 1), list[int]()

    def work(number: int) -> None:
        begun.wait()
        try:
            while True:
                with contextlib.suppress(CommandError, HostError):
                    pool.get(targets[number]).run("sleep 600")  # it connects again
                progress.check()
        finally:
            ended.append(number)

    async def stop() -> None:
        working = asyncio.ensure_future(threads.on_each(work))
        await asyncio.to_thread(begun.wait)
        working.cancel()
        await threads.stop()

    asyncio.run(stop())
    assert sorted(ended) == [0, 1]


@pytest.mark.parametrize("name", ["lab1", "behind"])
def test_stop_does_not_wait_for_a_host_that_does_not_answer(
    lab: Lab, client: Path, name: str
) -> None:
    way = f"Host behind\n  HostName {lab.hosts[1].address}\n  ProxyJump lab1\n"
    write(client, way + (client / "config").read_text())
    host, connection = lab.hosts[0], pool.get(parse_one(name))
    asked = ["ss", "-Htn", "state", "syn-sent", "dst", host.address]
    with cut(host), ThreadPoolExecutor() as threads:
        connecting = threads.submit(connection.connect)
        until(lambda: command(asked))
        connection.abort()
        with pytest.raises(HostError):
            connecting.result(CONNECT_WITHIN / 2)


def test_what_a_host_prints_has_a_limit(lab: Lab, client: Path) -> None:
    connection = pool.get(parse_one(lab.hosts[0].name))
    with pytest.raises(CommandError, match=r"a command printed more than 4"):
        connection.run("yes")
    with pytest.raises(HostError, match=r"its login scripts printed more than 6"):
        connection.open_bridge("yes")
    assert connection.run("echo here") == "here\n"


def test_a_server_that_runs_one_command_at_a_time(lab: Lab, client: Path) -> None:
    host = lab.hosts[0]
    with host.configured("MaxSessions 1"):
        connection = pool.get(parse_one(host.name))
        assert [connection.run("echo here") for _ in range(20)] == ["here\n"] * 20
        bridge = f"printf %s {shlex.quote(MARK.decode())}; cat"
        with contextlib.closing(connection.open_bridge(bridge)):
            transport = connection.connect()
            refused = "it allows no more commands at a time on a connection: raise MaxSessions"
            for _ in range(2):
                with pytest.raises(HostError, match=f"^{refused}"):
                    connection.run("echo here")
            # Who uses it still has it.
            assert connection.connect() is transport


@pytest.mark.parametrize(
    ("line", "add"),
    [
        ("Ciphers chacha20-poly1305@openssh.com", "aes256-ctr to Ciphers"),
        ("KexAlgorithms sntrup761x25519-sha512@openssh.com", "curve25519-sha256@libssh.org to Kex"),
        ("Ciphers aes256-ctr\nMACs umac-128-etm@openssh.com", "hmac-sha2-256 to MACs"),
    ],
)
def test_a_server_that_has_nothing_in_common_with_us_is_told_what(
    lab: Lab, client: Path, line: str, add: str
) -> None:
    with lab.hosts[0].configured(line), pytest.raises(HostError, match=f"in common: add {add}"):
        connect("lab1")


def test_a_server_may_call_a_way_to_exchange_keys_by_its_later_name(lab: Lab, client: Path) -> None:
    with lab.hosts[0].configured("KexAlgorithms curve25519-sha256"):
        assert connect("lab1") == "lab1"


def test_a_stranger_is_not_listened_to_for_long(client: Path) -> None:
    """Anybody in the network can answer in place of a host, before its key is known."""
    sent = 0
    listener = socket.create_server(("127.0.0.1", 0))

    def talk() -> None:
        nonlocal sent
        with listener.accept()[0] as sock, suppress(OSError):
            sock.sendall(b"SSH-2.0-x\r\n\x7f\xff\xff\xfc")  # a packet of two gigabytes
            while sent < 64 * 2**20:
                sent += sock.send(bytes(2**16))

    talker = threading.Thread(target=talk)
    talker.start()
    connection = SSHConnection(parse_one(f"127.0.0.1:{listener.getsockname()[1]}"))
    with pytest.raises(sky.SkyError, match="does not speak SSH as expected"):
        connection.run("hostname")
    talker.join()
    listener.close()
    assert sent < 16 * 2**20  # what buffers of the system hold


@pytest.mark.parametrize(
    ("said", "ends", "sentence"),
    [
        (b"", "no", "accepted the connection, and then did not answer: its SSH server hangs"),
        (b"SSH-2.0-x\r\n", "no", "accepted the connection, and then did not answer"),
        (b"", "closes", "closed the connection without a word: it may have too many logins"),
        (b"", "resets", "closed the connection without a word: it may have too many logins"),
        (b"Exceeded MaxStartups\r\n", "closes", "lets nobody in at this moment .Exceeded MaxSta"),
        (b"HTTP/1.1 400 Bad Request\r\n", "closes", "does not speak SSH as expected"),
    ],
)
def test_a_server_that_says_nothing_is_not_said_to_speak_something_else(
    client: Path, monkeypatch: pytest.MonkeyPatch, said: bytes, ends: str, sentence: str
) -> None:
    monkeypatch.setattr(handshake, "_PAUSES", ())
    write(client, f"Host *\n  ConnectTimeout {1 if ends == 'no' else CONNECT_WITHIN:g}\n")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connection = SSHConnection(parse_one(f"127.0.0.1:{listener.getsockname()[1]}"))
        with ThreadPoolExecutor() as pool:
            asked = pool.submit(connection.run, "hostname")
            with listener.accept()[0] as sock:
                sock.sendall(said)
                if ends == "resets":  # as a system does if something has arrived unread
                    sock.recv(1, socket.MSG_PEEK)
                if ends != "no":
                    sock.close()
                with pytest.raises(sky.SkyError, match=sentence):
                    asked.result()
