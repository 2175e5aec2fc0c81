"""The keys that a host is shown: of ssh-agent, of files, with certificates, as ssh shows them."""

from __future__ import annotations

import base64
import contextlib
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection import handshake
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.connection.keys import ssh_agent
from tests.lab import Lab
from tests.lab.host import make_key
from tests.providers.ssh.test_connecting import connect, write
from tests.waiting import until


@contextlib.contextmanager
def an_agent(place: Path) -> Iterator[Path]:
    """Run an ssh-agent that only this socket leads to."""
    words = ["ssh-agent", "-D", "-a", str(place)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL)
    try:
        until(place.exists)
        yield place
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def agent(client: Path) -> Iterator[Path]:
    with an_agent(client / "agent.sock") as place:
        yield place


def add(agent: Path, key: Path, *options: str) -> None:
    environ = {"PATH": "/usr/bin:/bin", "SSH_AUTH_SOCK": str(agent)}
    subprocess.run(["ssh-add", "-q", *options, str(key)], env=environ, check=True)


def configure(client: Path, *lines: str) -> None:
    config = (client / "config").read_text()
    write(client, "\n".join([*lines, config]))


def test_the_configuration_names_the_agent(
    client: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(agent, client / "id_ed25519")
    (client / "id_ed25519").unlink()
    config = (client / "config").read_text()
    monkeypatch.setenv("MY_AGENT", str(agent))
    for name in (f"{agent}", "~/.ssh/agent.sock", "$MY_AGENT", "${MY_AGENT}"):
        write(client, f"IdentityAgent {name}\n{config}")
        assert connect("lab1") == "lab1"
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    write(client, f"IdentityAgent SSH_AUTH_SOCK\n{config}")
    assert connect("lab1") == "lab1"
    write(client, f"IdentityAgent none\n{config}")
    with pytest.raises(SkyError, match="it accepts none|there is no key"):
        connect("lab1")


@pytest.mark.parametrize("name", ["chosen.pub", "chosen"])
def test_a_public_key_chooses_that_of_the_agent(
    lab: Lab, client: Path, agent: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    for number in range(8):  # a server hangs up after six
        add(agent, make_key(client / f"other{number}"))
    add(agent, client / "id_ed25519")
    (client / "id_ed25519").unlink()
    (client / "id_ed25519.pub").rename(client / "chosen.pub")
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    configure(client, f"IdentityFile ~/.ssh/{name}", "IdentitiesOnly yes")
    assert connect("lab1") == "lab1"


def test_an_agent_that_does_not_answer_is_not_waited_for(
    client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ssh_agent, "ANSWER_WITHIN", 0.1)
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(client / "silent.sock"))
        silent.listen()
        monkeypatch.setenv("SSH_AUTH_SOCK", str(client / "silent.sock"))
        assert connect("lab1") == "lab1"


def test_an_agent_may_refuse_to_sign(
    client: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where the user has not confirmed it, or a key on a token was not touched."""
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    add(agent, make_key(client / "unconfirmed"), "-c")
    assert connect("lab1") == "lab1"
    (client / "id_ed25519").unlink()
    with pytest.raises(SkyError, match=r"ssh-agent did not sign with unconfirmed\) for root"):
        connect("lab1")


def ssh_string(content: bytes) -> bytes:
    return len(content).to_bytes(4, "big") + content


def make_security_key(place: Path, kind: str) -> None:
    """Write the file that ssh-keygen writes for a security key."""
    encoding, form = serialization.Encoding, serialization.PublicFormat
    if kind == "ssh-ed25519":
        key = ed25519.Ed25519PrivateKey.generate().public_key()
        public = ssh_string(key.public_bytes(encoding.Raw, form.Raw))
    else:
        point = ec.generate_private_key(ec.SECP256R1()).public_key()
        public = ssh_string(b"nistp256")
        public += ssh_string(point.public_bytes(encoding.X962, form.UncompressedPoint))
    public = ssh_string(f"sk-{kind}@openssh.com".encode()) + public + ssh_string(b"ssh:")
    private = bytes(8) + public + b"\1" + ssh_string(b"handle") + ssh_string(b"") * 2
    private += bytes(range(1, 1 + -len(private) % 8))
    content = b"openssh-key-v1\0" + ssh_string(b"none") * 2 + ssh_string(b"")
    content += (1).to_bytes(4, "big") + ssh_string(public) + ssh_string(private)
    border = "-----{} OPENSSH PRIVATE KEY-----\n"
    body = base64.encodebytes(content).decode()
    place.write_text(f"{border.format('BEGIN')}{body}{border.format('END')}")
    place.chmod(0o600)


@pytest.mark.parametrize("kind", ["ssh-ed25519", "ecdsa-sha2-nistp256"])
def test_a_security_key_is_for_ssh_agent_to_ask(
    client: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_security_key(client / "token", kind)
    subprocess.run(["ssh-keygen", "-yf", client / "token"], capture_output=True, check=True)
    configure(client, "IdentityFile ~/.ssh/token", "IdentityFile ~/.ssh/id_ed25519")
    assert connect("lab1") == "lab1"
    (client / "id_ed25519").unlink()
    with pytest.raises(SkyError) as caught:
        connect("lab1")
    said = f"run `ssh-add {client}/token`, as security keys work only through ssh-agent, or `"
    assert said in str(caught.value)
    # Another one has a passphrase, which the user does not type.
    monkeypatch.setattr("getpass.getpass", lambda prompt: "")
    other = make_key(client / "other")
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", other], check=True)
    configure(client, f"IdentityFile {other}")
    with pytest.raises(SkyError) as caught:
        connect("lab1")
    assert f"({other} stayed locked)" in str(caught.value) and said in str(caught.value)


# Certificates


def test_a_certificate_of_a_key_that_the_agent_has(
    lab: Lab, client: Path, agent: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = make_key(client / "centre")
    add(agent, key)
    monkeypatch.setenv("SSH_AUTH_SOCK", str(agent))
    # On the disk it has a passphrase, which nobody is there to type.
    subprocess.run(["ssh-keygen", "-q", "-p", "-P", "", "-N", "secret", "-f", key], check=True)
    configure(client, f"IdentityFile {key}", "IdentitiesOnly yes")
    with pytest.raises(SkyError, match="it accepts none of 1 keys"):
        connect("lab1")
    lab.certify(key)
    assert connect("lab1") == "lab1"


def test_a_certificate_is_of_one_key(lab: Lab, client: Path) -> None:
    other = make_key(client / "other")
    lab.certify(other)
    certificate = Path(f"{other}-cert.pub").rename(client / "theirs.pub")
    configure(client, f"CertificateFile {certificate}", "IdentityFile ~/.ssh/id_ed25519")
    assert connect("lab1") == "lab1"
    write(client, (client / "config").read_text().replace("id_ed25519", "other"))
    assert connect("lab1") == "lab1"


def test_a_certificate_of_yesterday_does_not_hinder_its_key(lab: Lab, client: Path) -> None:
    key = client / "id_ed25519"
    signed = ["-s", str(lab.folder / "keys" / "ca"), "-I", "x", "-n", "root", "-V", "-2d:-1d"]
    subprocess.run(["ssh-keygen", "-q", *signed, f"{key}.pub"], check=True)
    assert Path(f"{key}-cert.pub").exists()
    assert connect("lab1") == "lab1"


# Servers that take their time


@contextlib.contextmanager
def slow_directory(lab: Lab, seconds: float) -> Iterator[None]:
    """Have a server ask a slow directory service for the keys of its users."""
    host = lab.hosts[0]
    ask = host.folder / "etc" / "ask"
    ask.write_text(f"#!/bin/sh\nsleep {seconds}\ncat {lab.folder}/keys/authorized_keys\n")
    ask.chmod(0o755)
    lines = ["AuthorizedKeysFile none", f"AuthorizedKeysCommand {ask}"]
    with host.configured("\n".join([*lines, "AuthorizedKeysCommandUser root"])):
        yield


def test_a_login_may_take_longer_than_a_connection(lab: Lab, client: Path) -> None:
    configure(client, "ConnectTimeout 1")
    with slow_directory(lab, 1.5):
        assert connect("lab1") == "lab1"


def test_a_server_that_does_not_say_whether_it_lets_in_has_not_refused(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(handshake, "AUTHENTICATE_WITHIN", 1.0)
    configure(client, "ConnectTimeout 1")
    with slow_directory(lab, 3), pytest.raises(HostError) as caught:
        connect("lab1")
    assert "did not answer within 1 s whether root may log in: is it overloaded" in str(
        caught.value
    )
