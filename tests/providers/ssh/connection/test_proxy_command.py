"""``ProxyCommand``: what it leads to, what it says where it fails, and how it ends."""

from __future__ import annotations

import shlex
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

import jupyter_sky as sky
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.ssh.connection import handshake, users
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.handshake import open_socket
from jupyter_sky.providers.ssh.connection.proxy_command import ProxyCommand
from jupyter_sky.providers.ssh.connection.ssh_config import Login, read_login
from jupyter_sky.providers.ssh.connection.targets import parse_one
from tests.lab import Lab, relay
from tests.notebook.kernels import LiveNotebook
from tests.waiting import until


def behind(client: Path, host: str, command: str, more: str = "") -> None:
    """Have ``~/.ssh/config`` say that a host is reached through a command."""
    config = client / "config"
    lines = f"Host {host}\n  ProxyCommand {command}\n  {more}\n"
    config.write_text(f"{lines}{config.read_text()}")


def relaying(client: Path) -> str:
    """Return a command that leads to a host; it is found again by the folder that it names."""
    words = [sys.executable, "-S", "-E", relay.__file__, "%h", "%p", str(client)]
    return shlex.join(words)


def running(client: Path) -> list[psutil.Process]:
    """Return the commands that run."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        words = each.info["cmdline"] or []
        if str(client) in words:
            found.append(each)
    return found


def refused(host: str) -> tuple[str, SSHConnection]:
    """Return why a host cannot be reached."""
    connection = SSHConnection(parse_one(host))
    with pytest.raises(HostError) as caught:
        connection.connect()
    return str(caught.value), connection


# What the configuration says


@pytest.mark.parametrize(
    "config",
    [
        "Host a\n  ProxyJump none\nHost *\n  ProxyCommand nc %h\n",
        "Host a\n  ProxyJump none\nHost *\n  ProxyJump b\n",
        "Host a\n  ProxyCommand none\nHost *\n  ProxyJump b\n",
        "Host a\n  ProxyCommand NONE\nHost *\n  ProxyCommand nc\n",
        "Host a\n  proxycommand=nc 'x y' # not a comment\nHost *\n  ProxyJump b\n",
        "Host a\n  ProxyJump = b,c # a comment\n  ProxyCommand nc\n",
        'Host a\n  ProxyCommand   "nc" x\n  ProxyJump b\n',
        "Match user nobody\n  ProxyCommand nc\nHost *\n  ProxyJump b\n",
    ],
)
def test_what_comes_first_holds_as_ssh_reads_it(client: Path, config: str) -> None:
    (client / "config").write_text(config)
    said = subprocess.run(
        ["ssh", "-G", "-F", client / "config", "a"], capture_output=True, text=True
    ).stdout
    options = dict(line.split(" ", 1) for line in said.splitlines() if " " in line)
    ours = read_login(parse_one("a"))
    assert ",".join(ours.jumps) == options.get("proxyjump", "")
    command = options.get("proxycommand")
    assert ours.proxy_command == (command and command.replace("%h", "a"))


def test_its_shell_gets_what_ssh_gives_it(
    client: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHELL", "/bin/bash")
    # Of a socket as its input bash thinks that it was called over the network.
    monkeypatch.delenv("SHLVL", raising=False)
    (client.parent / ".bashrc").write_text(f"echo read >>{tmp_path / 'bashrc'}\n")
    said = tmp_path / "said"
    behind(
        client,
        "door",
        f"sh -c 'echo \"$@\" $PPID >>{said}' - %h %p %r %n 100%% ~ a~b $BASH_VERSION",
        "HostName 10.9.8.7\n  Port 2200\n  User ada",
    )
    subprocess.run(["ssh", "-F", client / "config", "door"], capture_output=True)
    refused("door")
    [theirs, ours] = [line.split() for line in said.read_text().splitlines()]
    assert theirs[:-1] == ours[:-1]
    assert ours[:5] == ["10.9.8.7", "2200", "ada", "door", "100%"]
    assert not (tmp_path / "bashrc").exists()
    assert "5." in ours[-2]  # the user's shell was asked to run it


def test_what_a_shell_would_misread_is_refused(client: Path) -> None:
    behind(client, "door", "nc %h %q")
    with pytest.raises(UsageError, match="config cannot be used: %q is not known there; there are"):
        read_login(parse_one("door"))
    behind(client, "door", "nc %r %h")
    for user in ("$(reboot)", "a;b", "-o"):
        with pytest.raises(UsageError, match="is no name of a user"):
            read_login(parse_one(f"{user}@door"))
    behind(client, "door", "nc -F %h", "ProxyUseFdpass yes")
    with pytest.raises(UsageError, match="ProxyUseFdpass is not supported"):
        read_login(parse_one("door"))


# Where it fails


def test_what_it_says_where_it_fails_is_told(client: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = "sh -c 'for n in 1 2 3 4; do echo line $n >&2; done; exit 7'"
    behind(client, "door", command)
    why = "its ProxyCommand ended with status 7 (line 2 / line 3 / line 4): does ssh reach it in a"
    assert refused("door")[0].startswith(why)
    behind(client, "door", "no-such-program %h")
    assert "ended with status 127" in refused("door")[0]
    assert "no-such-program" in refused("door")[0]
    behind(client, "door", "sh -c 'kill -9 $$'")
    assert refused("door")[0].startswith("its ProxyCommand was ended by signal 9:")
    behind(client, "door", "sh -c 'echo asleep >&2; sleep 600'", "ConnectTimeout 1")
    why = "nothing came through its ProxyCommand within 1 s (asleep): does ssh reach it"
    assert refused("door")[0].startswith(why)
    monkeypatch.setenv("SHELL", "/bin/no-such-shell")
    assert refused("door")[0].startswith("/bin/no-such-shell cannot run its ProxyCommand")


@pytest.mark.parametrize(
    "turned_away",
    ["echo Exceeded MaxStartups", "echo kex_exchange_identification: closed >&2; exit 255"],
)
def test_who_is_turned_away_comes_back(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, turned_away: str
) -> None:
    """As by a host that leads to many: all of them are reached at once."""
    monkeypatch.setattr(handshake, "_PAUSES", (0.1, 0.1))
    script, count = tmp_path / "way", tmp_path / "count"
    way = shlex.join([sys.executable, "-S", "-E", relay.__file__])
    script.write_text(
        f"echo >> {count}\n[ $(wc -l < {count}) = 3 ] || {{ {turned_away}; exit; }}\n"
        f'exec {way} "$@"\n'
    )
    behind(client, "lab1", f"sh {script} %h %p")
    connection = SSHConnection(parse_one("lab1"))
    assert connection.run("hostname").strip() == "lab1"
    connection.close()
    count.unlink()
    monkeypatch.setattr(handshake, "_PAUSES", (0.1,))
    with pytest.raises(HostError, match="MaxStartups|closed"):
        connection.run("hostname")


def test_a_host_key_and_a_login_are_checked_behind_it(lab: Lab, client: Path) -> None:
    behind(client, "lab1", relaying(client))
    (client / "known_hosts").write_text("")
    with pytest.raises(sky.SkyError, match="its host key is not known"):
        SSHConnection(parse_one("lab1")).connect()
    assert not running(client)


def test_one_that_does_not_end_is_killed_and_none_stays_as_a_zombie(
    lab: Lab, client: Path, tmp_path: Path
) -> None:
    ids = tmp_path / "ids"
    stubborn = f"trap : HUP; echo $$ >>{ids}; while :; do sleep 1; done"
    behind(client, "door", f"sh -c {shlex.quote(stubborn)}", "ConnectTimeout 1")
    refused("door")
    behind(client, "door", f"sh -c 'echo $$ >>{ids}'")
    refused("door")
    behind(client, "lab1", relaying(client))
    connection = SSHConnection(parse_one("lab1"))
    assert connection.run("hostname") == "lab1\n"
    [process] = running(client)
    connection.close()
    assert not psutil.pid_exists(process.pid)
    found = [int(line) for line in ids.read_text().split()]
    assert len(found) == 2
    assert not any(map(psutil.pid_exists, found))


def test_a_stop_while_it_hangs_ends_it_at_once(client: Path, tmp_path: Path) -> None:
    here = tmp_path / "id"
    behind(client, "door", f"sh -c 'echo $$ >{here}; exec sleep 600'", "ConnectTimeout 600")
    connection = pool.get(parse_one("door"))
    said: list[str] = []

    def connect() -> None:
        with pytest.raises(HostError) as caught:
            connection.connect()
        said.append(str(caught.value))

    thread = threading.Thread(target=connect)
    thread.start()
    until(lambda: here.exists() and here.read_text())
    connection.abort()  # as the end of a launch does
    thread.join()
    assert said
    assert not psutil.pid_exists(int(here.read_text()))


def test_a_stop_in_the_moment_in_which_it_begins_is_heard(
    client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    behind(client, "door", "sleep 600", "ConnectTimeout 2")
    connection = SSHConnection(parse_one("door"))

    def stopped_at_once(login: Login, begun: Callable[..., object]) -> socket.socket | ProxyCommand:
        opened = open_socket(login, begun)
        connection.abort()
        return opened

    monkeypatch.setattr(handshake, "open_socket", stopped_at_once)
    with pytest.raises(HostError) as caught:
        connection.connect()
    assert "nothing came" not in str(caught.value)


@pytest.mark.parametrize("started_by", ["SIG_DFL", "SIG_IGN"], ids=["jupyter", "nohup"])
def test_a_kernel_that_ends_takes_along_what_reads_no_input(started_by: str) -> None:
    lines = (
        f"import signal; signal.signal(signal.SIGHUP, signal.{started_by})",
        "from jupyter_sky.providers.ssh.connection.proxy_command import ProxyCommand",
        "made = ProxyCommand('sleep 600', 'way', '')",
        "print(made._process.pid)",
    )
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True)
    until(lambda: not psutil.pid_exists(int(done.stdout)))


# Clusters


def test_a_cluster_behind_it(
    lab: Lab, client: Path, start, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The last of them may belong to a connection that nobody has closed since it was made anew.
    monkeypatch.setattr(users, "UNUSED_FOR", 2.0)
    behind(client, "lab1", relaying(client))
    behind(client, "lab2", relaying(client))
    cells = start("lab1,lab2", framework=False)
    cells.run("import socket; kept = socket.gethostname()")
    assert cells.ask("kept") == ["lab1", "lab2"]
    before = running(client)
    assert len(before) == 2
    for each in before:
        each.kill()
    cells.run("kept += '!'")
    assert cells.ask("kept") == ["lab1!", "lab2!"]
    cells.cluster.down()
    until(lambda: not running(client))
    assert not any(psutil.pid_exists(each.pid) for each in before)


def test_a_host_that_is_jumped_through_and_one_behind_it(lab: Lab, client: Path) -> None:
    """A jump host has a command of its own, which leads there; with hosts before it, these do."""
    first, second, third = lab.hosts[:3]
    behind(client, second.name, relaying(client))
    config = (client / "config").read_text()
    (client / "config").write_text(f"Host {third.name}\n  ProxyJump {second.name}\n{config}")
    connection = SSHConnection(parse_one(third.name))
    assert connection.run("hostname") == "lab3\n"
    assert len(running(client)) == 1
    connection.close()
    until(lambda: not running(client))
    (client / "config").write_text(
        f"Host {third.name}\n  ProxyJump {first.name},{second.name}\n{config}"
    )
    connection = SSHConnection(parse_one(third.name))
    assert connection.run("hostname") == "lab3\n"
    assert not running(client)
    connection.close()


def test_in_a_notebook(lab: Lab, client: Path, notebook: LiveNotebook, tmp_path: Path) -> None:
    here, usual = tmp_path / "id", (client / "config").read_text()
    behind(client, "lab1", f"sh -c 'echo $$ >{here}; exec sleep 600'", "ConnectTimeout 600")
    cell = notebook.start("%%sky --hosts lab1 --plugin none\nkept = 1")
    until(lambda: here.exists() and here.read_text())
    notebook.interrupt()
    assert notebook.finish(cell).error
    until(lambda: not psutil.pid_exists(int(here.read_text())))

    (client / "config").write_text(usual)
    behind(client, "lab1", relaying(client))
    notebook.succeed("%%sky --hosts lab1 --plugin none\nkept = 1")
    [process] = running(client)
    cell = notebook.start("%%sky\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    notebook.interrupt()
    notebook.finish(cell)
    # A Stop interrupts the kernel and what runs with it, and not the connection.
    assert [each.pid for each in running(client)] == [process.pid]
    psutil.Process(notebook.pid).send_signal(signal.SIGKILL)
    until(lambda: not running(client))
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky\n%sky down")
    until(lambda: not lab.hosts[0].processes("jupyter_sky"))
