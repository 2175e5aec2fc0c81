"""`jupyter sky shell` in a real terminal, on nodes of this computer and over SSH."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pexpect
import psutil
import pytest

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.lab import Lab
from tests.node_processes import is_there
from tests.notebook.kernels import PATIENCE
from tests.providers.ssh.conftest import client, opened_over_ssh
from tests.waiting import until

__all__ = ["client"]

COMMAND = [sys.executable, "-P", "-m", "jupyter_sky"]
Open = Callable[..., Any]


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A cluster that no notebook is connected to, for a user with a plain shell."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SHELL", "/bin/sh")
        patch.delenv("ENV", raising=False)
        spec, runtime_env = assemble(ClusterSpec(name="shells", nodes=2), [])
        made = Cluster.start(spec, Local(grace=600), runtime_env)
    yield made.name
    made.down()


@pytest.fixture
def opened() -> Iterator[Open]:
    """Open shells in terminals; they end with the test."""
    made: list[Any] = []

    def open_shell(*words: str, **env: str) -> Any:
        terminal = pexpect.spawn(
            COMMAND[0],
            [*COMMAND[1:], "shell", *words],
            env={**os.environ, "TERM": "xterm", **env},
            dimensions=(33, 77),
            timeout=PATIENCE,
            encoding="utf-8",
        )
        made.append(terminal)
        return terminal

    yield open_shell
    for terminal in made:
        terminal.close(force=True)


def says(terminal: Any, command: str, pattern: str) -> Any:
    """Type a command whose output has to match; return the match.

    What is typed comes back as well: its answer has a quotation less.
    """
    terminal.sendline(command)
    terminal.expect(pattern)
    return terminal.match


def status(terminal: Any) -> int:
    terminal.expect(pexpect.EOF)
    assert "Traceback" not in terminal.before
    terminal.close()
    return int(terminal.exitstatus)


def test_a_shell_is_a_terminal_on_the_node(cluster: str, opened: Open) -> None:
    terminal = opened("1", "--cluster", cluster)
    says(terminal, "stty size", r"33 77\r")
    says(terminal, "echo to''ld $TERM", r"told xterm\r")
    python = says(terminal, "echo py''thon=$(command -v python)", r"python=(\S+)\r")[1]
    assert Path(python).parent == Path(sys.executable).parent
    loop = "while :; do sleep 0.05; done"
    says(terminal, f"sh -c \"trap 'stty size' WINCH; echo rea''dy; {loop}\"", "ready\r")
    terminal.setwinsize(40, 100)
    terminal.expect(r"40 100\r")
    terminal.sendcontrol("c")
    says(terminal, "echo af''ter", "after\r")
    says(terminal, "seq 100000 | md5sum", subprocess_md5())
    terminal.sendline("exit 7")
    assert status(terminal) == 7


def subprocess_md5() -> str:
    text = subprocess.run("seq 100000 | md5sum", shell=True, capture_output=True, text=True)
    return text.stdout.split()[0]


def test_much_output_comes_as_a_whole(cluster: str, opened: Open) -> None:
    terminal = opened("--cluster", cluster)
    terminal.sendline("stty -echo; echo be''gins; seq 60000; echo en''ds; exit")
    terminal.expect("begins\r\n")
    terminal.expect("ends\r\n", searchwindowsize=4000)
    assert terminal.before.split() == [str(n) for n in range(1, 60001)]
    assert status(terminal) == 0


def test_a_shell_ends_with_its_terminal(cluster: str, opened: Open) -> None:
    terminal = opened("0")
    pid = int(says(terminal, "echo p''id=$$", r"pid=(\d+)\r")[1])
    assert psutil.pid_exists(pid)
    terminal.close(force=False)  # SIGHUP
    until(lambda: not psutil.pid_exists(pid))


def left_running(terminal: Any) -> psutil.Process:
    """Leave a program running that hears no hangup, and return its process."""
    words = ["sleep", f"1000.{os.getpid()}"]
    says(terminal, f"nohup {shlex.join(words)} >/dev/null & echo le''ft", r"left\r")
    # Its host counts its processes anew: it is found here by what runs.
    [found] = until(lambda: [each for each in psutil.process_iter() if cmdline(each) == words])
    return found


def cmdline(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def test_what_it_has_left_running_ends_with_the_cluster(opened: Open) -> None:
    spec, runtime_env = assemble(ClusterSpec(name="leaves", nodes=1), [])
    cluster = Cluster.start(spec, Local(grace=600), runtime_env)
    process = None
    try:
        terminal = opened("0", "--cluster", "leaves", SHELL="/bin/sh")
        process = left_running(terminal)
        terminal.sendline("exit")
        assert status(terminal) == 0
        assert is_there(process)
        cluster.down()
        until(lambda: not is_there(process))
    finally:
        if cluster.alive:
            cluster.down()
        if process and is_there(process):
            process.kill()


def test_what_cannot_be_done_is_said(cluster: str, opened: Open) -> None:
    done = subprocess.run(
        [*COMMAND, "shell"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 2
    assert "needs a terminal, and this is none" in done.stderr
    several = opened("0-1")
    several.expect("name one rank, as in `jupyter sky shell 3`")
    assert status(several) == 2
    missing = opened("5", "--hold")
    missing.expect("there is no rank 5.*Enter closes this terminal")
    missing.sendline("")
    assert status(missing) == 2


def test_a_shell_over_ssh_outlives_a_broken_link(
    lab: Lab, client: Path, tmp_path: Path, opened: Open
) -> None:
    with opened_over_ssh(client, tmp_path) as notebook:
        notebook.succeed("%%sky --hosts lab1,lab2 --plugin none --cluster far\npass")
        terminal = opened("1", "--cluster", "far")
        says(terminal, "echo ho''st=$(hostname)", "host=lab2\r")
        try:
            gone = tmp_path / "the link is gone"
            terminal.sendline(f"until [ -e '{gone}' ]; do sleep 0.1; done; echo pri''nted")
            lab.unplug()
            # Each key that is lost to the eye says why, once.
            while terminal.expect(["no connection to lab2", pexpect.TIMEOUT], timeout=0.5):
                terminal.send(" ")
            gone.touch()
            terminal.sendline("echo ty''ped")
        finally:
            lab.plug_in()
        # Both come, in order: what was printed without a link, and what was typed.
        terminal.expect("printed\r")
        terminal.expect("typed\r")
        left = left_running(terminal)
        terminal.sendline("exit 3")
        assert status(terminal) == 3
        assert is_there(left)
        # An agent that is gone, or had no time to end them, has left them behind.
        [agent] = lab.hosts[1].processes(r"-m jupyter_sky\.node /")
        agent.kill()
        notebook.succeed("%sky down far")
        until(lambda: not is_there(left))
