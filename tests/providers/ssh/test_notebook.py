"""The magic on machines over SSH, in a real kernel."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook

ROOT = Path(__file__).parents[3]


@pytest.fixture
def notebook(lab: Lab, tmp_path: Path) -> Iterator[LiveNotebook]:
    made = LiveNotebook(tmp_path / "n.ipynb", HOME=str(lab.home), PYTHONPATH=str(ROOT))
    try:
        made.succeed(f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}")
        yield made
    finally:
        made.close()


def test_from_hosts_to_a_formed_group(lab: Lab, notebook: LiveNotebook) -> None:
    cell = notebook.succeed(
        "%%sky --provider ssh --hosts lab1,lab2,lab3,lab4 --out total,places\n"
        "import socket, torch, torch.distributed as dist\n"
        "total = torch.ones(1) * dist.get_rank()\n"
        "dist.all_reduce(total)\n"
        "places = [None] * 4\n"
        "dist.all_gather_object(places, socket.gethostname())\n"
        "print('on', socket.gethostname())"
    )
    assert cell.stdout == "on lab1\n"
    assert notebook.value("total.item()") == 6.0
    assert notebook.value("places") == [host.name for host in lab.hosts]
    assert any("4 ssh nodes, 4 ranks on CPU, group formed" in text for text in cell.shown)
    status = notebook.succeed("%sky status").stdout
    assert "ssh" in status
    assert "10.213." in status
    notebook.succeed("%sky down")
    for host in lab.hosts:
        assert not host.processes("jupyter_sky")
        assert not list((host.folder / "tmp" / "jupyter-sky-0").iterdir())


def test_hosts_without_a_provider_are_reached_over_ssh(notebook: LiveNotebook) -> None:
    notebook.succeed("%config Sky.groups = {'pair': ['lab1', 'lab2:2']}")
    notebook.succeed("%%sky --hosts pair --plugin none --gather rank\nrank = sky_rank = 0")
    assert notebook.value("rank") == [0, 0, 0]
    cell = notebook.run("%%sky --hosts lab3\npass")
    assert "is running with --hosts lab1,lab2, and the cell asks for lab3" in cell.sentence
    cell = notebook.run("%%sky --cluster other --provider ssh --plugin none\npass")
    assert "name them, as in `--hosts gpu1,gpu2`" in cell.sentence
    cell = notebook.run("%%sky --cluster other --hosts lab1 --spot --plugin none\npass")
    assert "--spot has no meaning for ssh nodes" in cell.sentence


def test_a_lost_node_is_said_and_restart_recovers(lab: Lab, notebook: LiveNotebook) -> None:
    notebook.succeed("%%sky --hosts lab1,lab2 --plugin none\nkept = 1")
    cell = notebook.start("%%sky\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    host = lab.hosts[1]
    host.power_off()
    try:
        lost = notebook.finish(cell)
        assert "the agent of rank 1 on lab2 is gone" in lost.sentence
        assert "`%sky restart`" in lost.sentence
    finally:
        host.start()
    restarted = notebook.succeed("%sky restart")
    assert any("2 ssh nodes" in text for text in restarted.shown)
    notebook.succeed("%%sky --gather new\nnew = 'kept' not in globals()")
    assert notebook.value("new") == [True, True]


def test_a_kernel_that_slept(lab: Lab, notebook: LiveNotebook) -> None:
    cell = notebook.start(
        "%%sky --hosts lab1,lab2 --plugin none --out n\nimport time\n"
        "for n in range(360):\n    print(n, flush=True)\n    time.sleep(0.1)"
    )
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    kernel = psutil.Process(notebook.pid)
    kernel.suspend()
    # Agents let go of a client that gives no sign of life.
    while any(host.processes("node.bridge") for host in lab.hosts):
        time.sleep(0.1)
    kernel.resume()
    notebook.finish(cell)
    assert cell.error is None
    assert cell.stdout.split() == [str(n) for n in range(360)]
    assert notebook.value("n") == 359


def test_a_restarted_kernel_finds_its_machines_again(notebook: LiveNotebook) -> None:
    cell = notebook.start(
        "%%sky --hosts lab1,lab2 --plugin none --gather place\nimport socket, time\n"
        "for n in range(150):\n    print(n, flush=True)\n    time.sleep(0.02)\n"
        "place = socket.gethostname()"
    )
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    lines = notebook.succeed("%sky attach").stdout.splitlines()[2:]
    assert lines == [str(n) for n in range(150)]
    assert notebook.value("place") == ["lab1", "lab2"]
