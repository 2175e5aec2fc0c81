"""Kernels that are killed while agents start on hosts: whoever ends the cluster ends these, too."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.ssh.conftest import cut, impatient
from tests.waiting import until

AGENT = "-m jupyter_sky.node "

_HOLDS = """#!/bin/sh
case "$(uname -n) $*" in
    "{host} "*"{agent}"*) read -r go < "{gate}" ;;
esac
exec {python} "$@"
"""


class Gate:
    """A Python with which no agent gets further than to be started on a host."""

    def __init__(self, folder: Path, host: str) -> None:
        gate, self.python = folder / "gate", folder / "python"
        os.mkfifo(gate)
        text = _HOLDS.format(host=host, agent=AGENT, gate=gate, python=sys.executable)
        self.python.write_text(text)
        self.python.chmod(0o755)


def kill_between(lab: Lab, notebook: LiveNotebook, line: str, up: int, held: int) -> None:
    """Kill the kernel when the agent of a host listens, and that of another one is held."""
    notebook.start(line)
    first, second = lab.hosts[up], lab.hosts[held]
    until(lambda: any((each / "agent.sock").exists() for each in first.agent_folders()))
    until(lambda: second.processes(AGENT))
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")


def agents(lab: Lab) -> list[str]:
    """Return the hosts on which an agent runs, or is about to."""
    return [host.name for host in lab.hosts if host.processes(AGENT)]


@pytest.mark.parametrize("end", ["%sky down cut", "%sky gc", "%%sky --cluster cut --hosts lab3\n1"])
def test_a_start_that_was_killed_leaves_no_agent_to_whoever_ends_it(
    lab: Lab, notebook: LiveNotebook, tmp_path: Path, end: str
) -> None:
    notebook.succeed(f"%config Sky.python = {str(Gate(tmp_path, 'lab2').python)!r}")
    line = "%sky up --cluster cut --hosts lab1,lab2 --plugin none"
    kill_between(lab, notebook, line, up=0, held=1)
    notebook.succeed(f"%config Sky.python = {sys.executable!r}\n%config Sky.plugin = 'none'")
    notebook.succeed(end)
    assert not {"lab1", "lab2"} & {*agents(lab)}
    notebook.run("%sky down cut")


def test_hosts_that_were_joining_end_with_the_cluster_whose_kernel_was_killed(
    lab: Lab, notebook: LiveNotebook, tmp_path: Path
) -> None:
    notebook.succeed(f"%config Sky.python = {str(Gate(tmp_path, 'lab4').python)!r}")
    notebook.succeed("%sky up --cluster grows --hosts lab1,lab2 --plugin none")
    line = "%sky scale 4 --cluster grows --hosts lab1,lab2,lab3,lab4"
    kill_between(lab, notebook, line, up=2, held=3)
    assert "ended; nothing is left running" in notebook.succeed("%sky down grows").stdout
    assert not agents(lab)


def test_a_host_that_was_joining_is_named_where_the_end_does_not_reach_it(
    lab: Lab, client: Path, notebook: LiveNotebook, tmp_path: Path
) -> None:
    notebook.succeed(f"%config Sky.python = {str(Gate(tmp_path, 'lab3').python)!r}")
    notebook.succeed("%sky up --cluster grows --hosts lab1 --plugin none")
    line = "%sky scale 3 --cluster grows --hosts lab1,lab2,lab3"
    kill_between(lab, notebook, line, up=1, held=2)
    with impatient(client, lab.hosts[1]), cut(lab.hosts[1]):
        ended = notebook.succeed("%sky down grows").stdout
        assert agents(lab) == ["lab2"]
    assert "ended, but lab2 could not be reached: what is left there is ended when it" in ended
    until(lambda: notebook.succeed("%sky gc") and not agents(lab))
