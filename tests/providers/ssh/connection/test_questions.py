"""What a host asks the user besides or in place of a key, as the computers of universities do."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.connection.keys import questions
from jupyter_sky.providers.ssh.connection.targets import parse_one
from tests.lab import Host, Lab
from tests.lab.host import make_key
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.test_connecting import connect, write
from tests.waiting import until

_PAM = """\
auth requisite pam_exec.so expose_authtok quiet {check}
auth required pam_permit.so
account required pam_permit.so
session required pam_permit.so
"""

TWO_FACTORS = (
    "AuthenticationMethods publickey,keyboard-interactive\nKbdInteractiveAuthentication yes"
)
PASSWORD_ALONE = "PubkeyAuthentication no\nPasswordAuthentication yes"


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "_passwords", {})
    monkeypatch.setattr(questions, "_enough", set())


@contextlib.contextmanager
def asking(host: Host, how: str) -> Iterator[Path]:
    """Have a host ask for a password, which is `secret`; the file that has a line for each try."""
    check, tries = host.folder / "etc" / "check", host.folder / "etc" / "tries"
    check.write_text(f"#!/bin/sh\necho >>{tries}\ntest \"$(tr -d '\\0')\" = secret\n")
    check.chmod(0o755)
    tries.write_text("")
    rules = host.folder / "etc" / "pam"
    rules.write_text(_PAM.format(check=check))
    host.run("mount", "--bind", str(rules), "/etc/pam.d/sshd")
    try:
        with host.configured(f"{how}\nUsePAM yes"):
            yield tries
    finally:
        host.run("umount", "/etc/pam.d/sshd")


class Keyboard:
    """Answers in place of the user, and keeps the questions."""

    def __init__(self, *answers: str) -> None:
        self._answers = iter(answers)
        self.asked: list[str] = []

    def __call__(self, prompt: str) -> str:
        self.asked.append(prompt)
        return next(self._answers)


@pytest.mark.parametrize("how", [TWO_FACTORS, PASSWORD_ALONE])
def test_a_password_is_asked_for_once(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    host = lab.hosts[0]
    monkeypatch.setattr("getpass.getpass", keyboard := Keyboard("wrong", "secret"))
    with asking(host, how):
        assert connect("lab1") == "lab1"
        assert connect("lab1") == "lab1"  # as after the connection broke
    question = f"(root@{host.address}) Password: "
    assert keyboard.asked == [question, f"Not accepted. {question}"]


def test_wrong_answers_come_to_an_end(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("getpass.getpass", Keyboard("1", "2", "3"))
    with asking(lab.hosts[0], PASSWORD_ALONE) as tries:
        with pytest.raises(SkyError, match="it accepts none of the answers for root"):
            connect("lab1")
        assert len(tries.read_text()) == 3


@pytest.mark.parametrize(
    "line", ["BatchMode yes", "PasswordAuthentication no", "PreferredAuthentications publickey"]
)
def test_nobody_is_asked_where_the_configuration_says_so(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch, line: str
) -> None:
    monkeypatch.setattr("getpass.getpass", keyboard := Keyboard())
    write(client, f"{line}\n{(client / 'config').read_text()}")
    with asking(lab.hosts[0], PASSWORD_ALONE) as tries:
        with pytest.raises(SkyError, match="it asks root for password, and nobody can answer"):
            connect("lab1")
        assert not tries.read_text()
    assert not keyboard.asked


def test_a_login_that_nobody_can_finish_is_not_begun(
    lab: Lab, client: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when a connection is made again at night: each try could count towards a lock-out."""
    with asking(lab.hosts[0], TWO_FACTORS) as tries:
        with pytest.raises(SkyError, match="for keyboard-interactive besides a key, and nobody"):
            SSHConnection(parse_one("lab1")).connect()
        assert not tries.read_text()


FORGET = (
    "from jupyter_sky.providers.ssh.connection.keys import questions\nquestions._passwords.clear()"
)
"""Has a kernel forget passwords: they are then like codes, which are valid once."""


def test_a_notebook_asks_in_its_cell(lab: Lab, notebook: LiveNotebook) -> None:
    host = lab.hosts[0]
    with asking(host, TWO_FACTORS) as tries:
        cell = notebook.start("%%sky --hosts lab1 --plugin none\nkept = 'let in'")
        assert notebook.answer("secret") == f"(root@{host.address}) Password: "
        assert not notebook.finish(cell).error
        # The connection breaks: nobody is asked until somebody is there, and nothing is lost.
        notebook.succeed(FORGET)
        for server in host.processes("sshd(-session)?: root"):
            server.kill()
        said = "lab1: it asks root for keyboard-interactive besides a key, and nobody can answer"
        until(lambda: said in notebook.succeed("%sky status").stdout)
        assert len(tries.read_text()) == 1
        cell = notebook.start("%sky doctor --hosts lab1")
        assert notebook.answer("secret").endswith("Password: ")
        assert "all is well" in notebook.finish(cell).stdout
        assert notebook.succeed("%%sky\nprint(kept)").stdout == "let in\n"
        assert len(tries.read_text()) == 2


def test_stop_at_a_question_asks_nothing_more(
    lab: Lab, client: Path, notebook: LiveNotebook
) -> None:
    (client / "id_ed25519").unlink()
    lab.authorize(make_key(client / "id_ed25519", passphrase="secret"))
    cell = notebook.start("%%sky --hosts lab1,lab2 --plugin none\npass")
    assert notebook.question() == f"Passphrase for {client}/id_ed25519: "
    notebook.interrupt()
    assert "KeyboardInterrupt" in notebook.finish(cell).traceback
    assert "No cluster is running" in notebook.succeed("%sky status").stdout


def test_a_notebook_without_a_keyboard_says_what_is_missing(
    lab: Lab, notebook: LiveNotebook
) -> None:
    with asking(lab.hosts[0], TWO_FACTORS) as tries:
        cell = notebook.run("%%sky --hosts lab1 --plugin none\npass")
        assert "keyboard-interactive besides a key, and nobody can answer" in cell.sentence
        assert not tries.read_text()
