"""uv for hosts, and what one of them offers to others: what strangers have a say in."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import urllib.request
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import psutil
import pytest

from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.providers.ssh.relay import Relay, RelayedFile
from jupyter_sky.providers.ssh.setup.packages import uv
from jupyter_sky.providers.ssh.setup.packages.uv import uv_program
from tests.node_processes import is_there
from tests.waiting import until


class ThisComputer:
    """Runs the scripts for a host here."""

    target = "gpu1"

    def run(self, script: str, data: bytes | None = None, **how: object) -> str:
        done = subprocess.run(["sh", "-s"], input=script, capture_output=True, text=True)
        return done.stdout


def test_others_on_the_host_do_not_say_what_is_ended_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process was read from a file in /tmp, whose name everybody could see: `1 -1` in it."""
    shared = tmp_path / "tmp"
    shared.mkdir()
    monkeypatch.setenv("TMPDIR", str(shared))
    file = tmp_path / "uv"
    file.write_bytes(b"a program")
    digest = hashlib.sha256(b"a program").hexdigest()
    facts = SimpleNamespace(uv="", sent_uv="", cache_folder=str(tmp_path), address="127.0.0.1")
    relay = Relay(hosts=2)
    host: Any = ThisComputer()
    wanted = RelayedFile("uv", digest, str(file))
    assert relay.bring(host, cast(Any, facts), wanted, lambda: None, lambda text: None)
    try:
        offer = relay._offers[digest].result()
        assert offer is not None
        process = psutil.Process(int(offer.end.split()[1]))
        assert process.cmdline()[-3:] == [str(file), digest, "127.0.0.1"]
        assert not list(shared.iterdir())
        with urllib.request.urlopen(offer.url) as answer:
            assert answer.read() == b"a program"
    finally:
        relay.close()
    until(lambda: not is_there(process))


def test_a_download_that_takes_too_long_is_said_to_all_hosts_and_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(uv, "_DOWNLOAD_WITHIN", 0.01)
    tried: list[str] = []

    def download() -> bytes:
        tried.append("vax")
        return uv_program("vax").read_bytes()

    relay = Relay(hosts=3)
    for _ in range(3):
        with pytest.raises(
            HostError,
            match=r"the download here takes more than 0 s: run `pip install uv` there, or",
        ):
            relay.content("uv vax", download)
    assert tried == ["vax"]


def test_no_pip_of_the_working_folder_is_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As of a repository that somebody else has made."""
    (tmp_path / "pip.py").write_text("open('run', 'w')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    with pytest.raises(HostError, match="there is none here for vax"):
        uv_program("vax")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("machine", ["../vax", "kept/../../secret", "", "vax\x1b[2J", "v" * 99])
def test_what_is_no_kind_of_machine_becomes_no_path(machine: str) -> None:
    with pytest.raises(HostError, match="does not say what kind of machine it is"):
        uv_program(machine)


def test_an_environment_without_pip_is_said_to_have_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one that uv has made."""
    made = tmp_path / "environment"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", made], check=True)
    monkeypatch.setattr(sys, "executable", str(made / "bin" / "python"))
    sentence = "and the notebook's environment has no pip to download it with: run `pip install uv`"
    with pytest.raises(HostError, match=sentence):
        uv_program("vax")
