"""``jupyter sky launch --background``: the terminal is free when the rest needs no one here."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from tests.notebook.programs.conftest import Terminal
from tests.waiting import until

SETUP = "until [ -e go ]; do sleep 0.01; done"


@pytest.fixture
def cluster(terminal: Terminal) -> Iterator[str]:
    """A cluster of two nodes, by its name, whose scripts run in the folder of the terminal."""
    name = f"left-{terminal.folder.name}"
    assert terminal.sky("up", "--nodes", "2", "--cluster", name).returncode == 0
    yield name
    terminal.sky("down", name)


RUN = "touch ran-$SKYPILOT_NODE_RANK"


def launch(terminal: Terminal, cluster: str, setup: str, run: str = RUN) -> subprocess.Popen[str]:
    """Launch a task in the background, and return when its setup is waited for."""
    text = f"num_nodes: 2\nsetup: {setup}\nrun: {run}\n"
    (terminal.folder / "task.yaml").write_text(text)
    program = terminal.begin("launch", "task.yaml", "--background", "--cluster", cluster)
    assert program.stdout
    while "waiting for the setup" not in (line := program.stdout.readline()):
        assert line, program.communicate()
    return program


def test_what_follows_the_setup_runs_without_the_terminal(
    terminal: Terminal, cluster: str, tmp_path: Path
) -> None:
    program = launch(terminal, cluster, SETUP, f"{SETUP.replace('go', 'on')}; {RUN}")
    (tmp_path / "go").touch()
    out, err = program.communicate()
    assert (program.returncode, err) == (0, "")
    assert out.startswith(f"{cluster}: running in the background; ")
    (tmp_path / "on").touch()
    until(lambda: (tmp_path / "ran-0").exists() and (tmp_path / "ran-1").exists())


FULL = ("sh", "-c", 'head -c 65536 /dev/zero; exec "$@"', "sh")
"""Runs a command that waits with the first that it prints until it is read."""


def test_a_run_that_is_over_is_not_said_to_go_on(
    terminal: Terminal, cluster: str, tmp_path: Path
) -> None:
    (tmp_path / "task.yaml").write_text(f"setup: {SETUP}\nrun: echo all of it; touch ran\n")
    words = ("launch", "task.yaml", "--background", "--cluster", cluster)
    program = terminal.begin(*words, under=FULL)
    place = Path(f"/proc/{program.pid}/wchan")
    until(lambda: "pipe_write" in place.read_text())
    (tmp_path / "go").touch()
    until((tmp_path / "ran").exists)
    until(lambda: "nothing is running" in terminal.sky("attach", cluster).stdout)
    out, err = program.communicate()
    assert (program.returncode, err) == (0, "")
    shows = f"jupyter sky logs --cluster {cluster}"
    assert out.endswith(f"\n{cluster}: over already; `{shows}` shows what it printed\n")
    assert "all of it\n" in terminal.sky(*shows.split()[2:]).stdout


def test_a_setup_that_fails_is_said(terminal: Terminal, cluster: str, tmp_path: Path) -> None:
    program = launch(terminal, cluster, f"{SETUP}; exit 9")
    (tmp_path / "go").touch()
    out, err = program.communicate()
    assert program.returncode == 9
    assert f"{cluster}: the setup did not end well, and the run was not begun; " in out
    assert "the script ended with exit status 9" in err and "Task was destroyed" not in err
    assert not list(tmp_path.glob("ran-*"))


def test_ctrl_c_stops_the_setup(terminal: Terminal, cluster: str, tmp_path: Path) -> None:
    program = launch(terminal, cluster, SETUP)
    program.send_signal(signal.SIGINT)
    _, err = program.communicate()
    assert program.returncode == 130 and "Task was destroyed" not in err
    until(lambda: "nothing is running" in terminal.sky("attach", cluster).stdout)
    assert not list(tmp_path.glob("ran-*"))


def test_a_lost_cluster_is_started_again_by_what_a_terminal_has(
    terminal: Terminal, cluster: str, tmp_path: Path
) -> None:
    row = registry.find(cluster)
    assert row
    (tmp_path / "task.yaml").write_text(f"run: kill -9 {row.machines[0]['pid']}; sleep 600")
    lost = terminal.sky("launch", "task.yaml", "--cluster", cluster)
    assert lost.returncode == 1
    assert f"cluster {cluster} is lost: the agent of" in lost.stderr
    assert (
        "ended. To start a new one, say where and how large, as in `jupyter sky up --cluster NAME "
        "--nodes 4`."
    ) in lost.stderr
    assert "cell" not in lost.stderr
