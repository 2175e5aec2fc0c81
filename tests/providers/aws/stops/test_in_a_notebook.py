"""``%sky stop`` and ``%sky start`` in a real kernel, and what the other commands say meanwhile."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import nbformat
import pytest

from jupyter_sky.providers.aws.clients import Clients
from tests.notebook.kernels import LiveNotebook
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.machines import Machines
from tests.providers.aws.stand_in.notebook import renting_notebook


@pytest.fixture
def notebook(machines: Machines, clients: Clients, tmp_path: Path) -> Iterator[LiveNotebook]:
    subnet = machines.subnet(clients)
    with renting_notebook(
        tmp_path / "n.ipynb", subnet=subnet, addresses="private", user="root"
    ) as made:
        yield made
        made.run("%sky down train")


AT_UP = """\
import os, signal, sys

def stop_at_up(frame, event, value):
    if event == "return" and frame.f_code.co_name == "describe":
        sys.setprofile(None)
        os.kill(os.getpid(), signal.SIGINT)

sys.setprofile(stop_at_up)
"""


def test_stop_and_start(
    notebook: LiveNotebook,
    account: Account,
    machines: Machines,
    left: Callable[[], list[str]],
    tmp_path: Path,
) -> None:
    sentence = notebook.run("%%sky --nodes 2 --autostop\npass").sentence
    assert "--autostop does not apply to local nodes: leave it out" in sentence
    sentence = notebook.run("%%sky --provider aws --autostop --max-cost 5\npass").sentence
    assert "--max-cost ends machines with their disks, which --autostop keeps" in sentence
    notebook.succeed("%%sky --nodes 1 --cluster here\npass")
    sentence = notebook.run("%sky stop here").sentence
    assert "local nodes are not stopped. It costs nothing: `%sky down` ends it" in sentence
    notebook.succeed("%sky down here")
    notebook.succeed(
        "%%sky --provider aws --nodes 2 --cpus 4+ --cluster train --variable WHERE=aws\n"
        "import os\nopen('kept', 'w').write('on the disk')"
    )
    assert "train is up already" in notebook.run("%sky start train").sentence
    loses, stopped = notebook.succeed("%sky stop").stdout.splitlines()
    # Said before it is done, which may fail.
    kept = "loses variables of ranks 0-1 and keeps files on its disks"
    assert loses == f"train: stopping its machines {kept}"
    assert stopped.startswith("train: stopped; its disks cost $0.0")
    assert "a month; `%sky start train` starts it again" in stopped
    assert not any(host.is_up for host in machines.hosts.values())
    table = notebook.succeed("%sky status").stdout
    assert "stopped" in table
    assert "its disks cost $0.0" in table
    assert "`%sky start train` starts it again" in table
    kept = notebook.succeed("%sky gc").stdout
    assert "kept: train, which is stopped: its disks cost $0.0" in kept
    assert "us-east-1, disks of it stopped" in notebook.succeed("%sky costs").stdout
    sentence = notebook.run("%%sky --cluster train\npass").sentence
    assert "cluster train is stopped: `%sky start train` starts it again" in sentence
    # What is refused is not the limit of the next start, and has started nothing to be stopped.
    stopped_once = account.actions.count("StopInstances")
    sentence = notebook.run("%sky start train --max-cost 0.01").sentence
    assert "$0.01 are left of --max-cost" in sentence
    assert account.actions.count("StopInstances") == stopped_once
    assert "--max-cost" not in notebook.succeed("%sky status").stdout
    # Another kernel starts it again, which knows what it was made of.
    notebook.restart()
    notebook.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}")
    cell = notebook.succeed("import os\nos.environ['WHERE'] = 'aws'\n%sky start train")
    assert any("2 aws nodes, 2 ranks on CPU, $0.42 an hour, ready in" in x for x in cell.shown)
    cell = notebook.succeed(
        "%%sky --gather found\nimport os\nfound = open('kept').read(), os.environ['WHERE']"
    )
    assert notebook.value("found") == [("on the disk", "aws")] * 2
    # A terminal stops it, which the notebook may not have noticed when it starts it again.
    stopped = notebook.succeed(f"!{sys.executable} -m jupyter_sky stop train").stdout
    assert "train: stopped; its disks cost $0.0" in stopped
    # Ctrl-C in the moment in which it is up leaves it to the notebook, which knows it.
    notebook.succeed(AT_UP)
    assert "`%sky start` was stopped" in notebook.run("%sky start train").sentence
    shown = notebook.succeed("%%sky --cluster train\npass").shown
    assert not any("connected again" in each for each in shown)
    # What a terminal starts is ended before long if nobody uses it, which is said.
    profile = tmp_path / "profile_default"
    profile.mkdir()
    (profile / "ipython_config.py").write_text(f"c.Sky.python = {sys.executable!r}")
    terminal = f"!IPYTHONDIR={tmp_path} {sys.executable} -m jupyter_sky"
    notebook.succeed(f"{terminal} stop train")
    said = notebook.succeed(f"{terminal} start train").stdout
    assert (
        "train stays up: `jupyter sky down train` ends it; a cluster of aws nodes ends with" in said
    )
    assert "its disks 15 min after the last notebook or program has left it, unless" in said
    notebook.succeed("%%sky\npass")
    notebook.succeed("%sky stop")
    assert "ended; nothing is left running" in notebook.succeed("%sky down train").stdout
    assert left() == []


def test_a_program_leaves_what_it_has_stopped(
    notebook: LiveNotebook, machines: Machines, clients: Clients, tmp_path: Path
) -> None:
    settings = {"subnet": machines.subnet(clients), "addresses": "private", "user": "root"}
    cells = [
        f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}\n"
        f"%config Sky.aws = {settings!r}\n%config Sky.plugin = ['none']",
        "%%sky --provider aws --nodes 1 --cpus 4+ --cluster train\nopen('kept', 'w').write('kept')",
        "%sky stop train",
    ]
    program = nbformat.v4.new_notebook(cells=[*map(nbformat.v4.new_code_cell, cells)])
    nbformat.write(program, tmp_path / "program.ipynb")
    line = f"!{sys.executable} -m jupyter_sky run {tmp_path / 'program.ipynb'}"
    said = notebook.succeed(line).stdout
    assert "train stays stopped: `jupyter sky start train` starts it again" in said
    assert re.search(r"finished after 3 cells and .*, (< )?\$0\.\d+\s*$", said)
    assert "its disks cost $0.0" in notebook.succeed("%sky status").stdout
