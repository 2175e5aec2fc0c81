"""Several commands over one connection, of which one takes long and says nothing."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait

import pytest

from jupyter_sky.providers.ssh.connection import connection, handshake
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.connection.transport import Transport
from tests.lab import Host, Lab
from tests.waiting import until

threads = ThreadPoolExecutor(2)


def silent(over: SSHConnection, host: Host, jump: SSHConnection) -> Future[str]:
    """Start a command that says nothing, as an installation does; wait until the host is silent."""
    begun, gate = host.folder / "tmp" / "begun", host.folder / "tmp" / "gate"
    script = f"touch {begun}; until test -e {gate}; do sleep 0.1; done; rm {begun} {gate}"
    started = threads.submit(over.run, f"{script}; echo installed")
    until(begun.exists)
    transport = jump.connect()
    until(lambda: transport.silent_for > connection._HEARD_WITHIN)
    return started


@contextlib.contextmanager
def paused(host: Host) -> Iterator[None]:
    """Let the SSH server of a host pause, as on a machine that has no time for it."""
    processes = host.processes("sshd")
    for each in processes:
        each.suspend()
    try:
        yield
    finally:
        for each in processes:
            each.resume()


@pytest.mark.parametrize("via", [(), ("lab2",)])
def test_a_host_that_pauses_does_not_lose_the_command_that_it_runs(
    lab: Lab, client: None, via: tuple[str, ...]
) -> None:
    first, way = lab.hosts[:2]
    there = pool.get(parse_one("lab1"), via)
    other = pool.get(parse_one("lab3"), via) if via else there
    jump = pool.get(parse_one("lab2")) if via else there
    quiet = silent(there, first, jump)
    try:
        with paused(way if via else first):
            asked = threads.submit(other.run, "echo here")
            wait([quiet], timeout=2 * connection._TEST_WITHIN)
        assert asked.result() == "here\n"
        assert not quiet.done()
    finally:
        (first.folder / "tmp" / "gate").touch()
    assert quiet.result() == "installed\n"
    for each in (other, there, jump):  # later tests look at what is left of connections
        each.close()


def test_what_waits_for_an_answer_ends_with_the_connection(lab: Lab, client: None) -> None:
    host, there = lab.hosts[0], pool.get(parse_one("lab1"))
    quiet = silent(there, host, there)
    try:
        with paused(host):
            asked = threads.submit(there.run, "echo here")
            until(there._lock.locked)
            there.close()
            with pytest.raises(HostError, match="it was stopped"):
                asked.result()
            with pytest.raises(HostError, match="the connection broke"):
                quiet.result()
    finally:
        (host.folder / "tmp" / "gate").touch()


@pytest.mark.parametrize("via", [(), ("lab2",)])
@pytest.mark.parametrize("data", [None, bytes(50_000_000)], ids=["silent", "being sent"])
def test_a_host_that_lost_its_power_is_given_up_while_it_runs_a_command(
    lab: Lab,
    client: None,
    monkeypatch: pytest.MonkeyPatch,
    via: tuple[str, ...],
    data: bytes | None,
) -> None:
    jump = pool.get(parse_one("lab2"))
    jump.connect()  # with the usual patience: it is the host that is to be given up
    monkeypatch.setattr(handshake, "GIVEN_UP_AFTER", 1.0)
    monkeypatch.setattr(handshake, "_KEEP_ALIVE", 0.2)
    host, there = lab.hosts[0], SSHConnection(parse_one("lab1"), via)
    begun = host.folder / "tmp" / "runs"
    script = f"touch {begun}; sleep 600" + "; cat > /dev/null" * (data is not None)
    started = threads.submit(there.run, script, data, ends_with_us=data is None)
    try:
        until(begun.exists)
        host.cut()
        with pytest.raises(HostError, match=r"^it has not answered for 1 s: is the machine on"):
            started.result(timeout=20)
    finally:
        begun.unlink(missing_ok=True)
        host.mend()
        for each in (there, jump):
            each.close()
        for each in host.processes("sleep 600"):
            each.kill()


def test_of_a_command_that_was_killed_it_is_said(lab: Lab, client: None) -> None:
    there = pool.get(parse_one("lab1"))
    with pytest.raises(CommandError, match="^a command was killed, as by a system without"):
        there.run("kill -KILL $PPID")
    with pytest.raises(CommandError, match="^a command ended with status 7$"):
        there.run("exit 7")
    there.close()


def test_a_server_that_is_slow_to_exchange_keys_again_is_not_given_up(
    lab: Lab, client: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "_KEEP_ALIVE", 0.1)
    there = SSHConnection(parse_one("lab1"))
    transport = there.connect()
    transport.clear_to_send_timeout = 0.2
    asked = threading.Event()
    ask = Transport.ask_for_sign_of_life

    def note(self: Transport) -> None:
        ask(self)
        asked.set()

    monkeypatch.setattr(Transport, "ask_for_sign_of_life", note)
    transport.clear_to_send.clear()  # as from the server's proposal until its keys have come
    try:
        assert asked.wait(10)
        transport.clear_to_send.set()
        assert transport.is_active()
        assert there.run("echo here") == "here\n"
    finally:
        there.close()
