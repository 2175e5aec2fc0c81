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
from tests.providers.ssh.conftest import cut, impatient
from tests.waiting import until

BEGIN = f"%load_ext jupyter_sky\n%config Sky.python = {sys.executable!r}"


@pytest.fixture
def client(same_client: Path) -> Path:
    return same_client


@pytest.fixture
def notebook(kernel_over_ssh: LiveNotebook) -> Iterator[LiveNotebook]:
    """A notebook without a cluster; its kernel is that of the tests before, or a new one."""
    yield kernel_over_ssh
    kernel_over_ssh.run("%sky down")
    kernel_over_ssh.succeed("%reset -f in out\n%reset -f")


def test_from_hosts_to_a_formed_group(lab: Lab, notebook: LiveNotebook) -> None:
    cell = notebook.succeed(
        "%%sky --provider ssh --hosts lab1,lab2,lab3,lab4 --out total,places\n"
        "import socket, torch, torch.distributed as dist\n"
        "total = torch.ones(1) * dist.get_rank()\n"
        "dist.all_reduce(total)\n"
        "total = total.item()\n"
        "places = [None] * 4\n"
        "dist.all_gather_object(places, socket.gethostname())\n"
        "print('on', socket.gethostname())"
    )
    assert cell.stdout == "on lab1\n"
    assert notebook.value("total") == 6.0
    assert notebook.value("places") == [host.name for host in lab.hosts]
    assert any("4 ssh nodes, 4 ranks on CPU, group formed" in text for text in cell.shown)
    status = notebook.succeed("%sky status").stdout
    assert "ssh" in status
    assert "node 3 (lab4)" in status
    notebook.succeed("%sky down")
    for host in lab.hosts:
        assert not host.processes("jupyter_sky")
        assert not host.agent_folders()


def test_hosts_without_a_provider_are_reached_over_ssh(notebook: LiveNotebook) -> None:
    notebook.succeed("%config Sky.groups = {'pair': ['lab1', 'lab2:2']}")
    notebook.succeed("%%sky --hosts pair --plugin none --gather rank\nrank = sky_rank = 0")
    assert notebook.value("rank") == [0, 0, 0]
    # Programs are those of the ranks' environment, whatever starts them.
    notebook.succeed(
        "%%sky --out found\nimport shutil\n[line] = !command -v python\n"
        "found = [line, shutil.which('python')]"
    )
    assert notebook.value("found") == [str(Path(sys.executable).with_name("python"))] * 2
    cell = notebook.run("%%sky --hosts lab3\npass")
    assert "is running with --hosts lab1,lab2, and the cell asks for lab3" in cell.sentence
    cell = notebook.run("%%sky --cluster other --provider ssh --plugin none\npass")
    assert "name them, as in `--hosts gpu1,gpu2`" in cell.sentence
    cell = notebook.run("%%sky --cluster other --hosts lab1,lab1 --plugin none\npass")
    assert "lab1 is named twice: leave one out, or type `lab1:2` for two ranks" in cell.sentence
    cell = notebook.run("%%sky --cluster other --hosts lab1 --spot --plugin none\npass")
    assert "--spot does not apply to ssh nodes" in cell.sentence


def test_a_lost_node_is_said_and_restart_recovers(lab: Lab, notebook: LiveNotebook) -> None:
    notebook.succeed("%%sky --hosts lab1,lab2 --plugin none\nkept = 1")
    cell = notebook.start("%%sky\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    host = lab.hosts[1]
    host.power_off()
    try:
        lost = notebook.finish(cell)
        assert "rank 1 on lab2 could not be reached for" in lost.sentence
        assert "`%sky restart` starts a new cluster at once" in lost.sentence
        logs = notebook.run("%sky logs 0,1")
        assert logs.stdout == "0 │ here\n"
        assert "there is no connection to lab2 since " in logs.sentence
        logs = notebook.start("%sky logs 0,1 --follow")
        notebook.until(logs, lambda logs: logs.stdout)
        notebook.interrupt()
        assert notebook.finish(logs).error is None
        assert logs.stderr == (
            "[there is no connection to rank 1: what is printed there comes later]\n"
        )
    finally:
        host.start()
    restarted = notebook.succeed("%sky restart")
    assert any("2 ssh nodes" in text for text in restarted.shown)
    notebook.succeed("%%sky --gather new\nnew = 'kept' not in globals()")
    assert notebook.value("new") == [True, True]


def test_what_is_left_of_a_lost_cluster_has_its_logs(lab: Lab, notebook: LiveNotebook) -> None:
    notebook.succeed("%sky up --hosts lab1,lab2 --plugin none")
    cell = notebook.start("%%sky\nprint('here', flush=True)\nimport time\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    lost = "is lost: the agent of rank 1 on lab2 ended"
    assert lost in notebook.finish(cell).sentence
    logs = notebook.succeed("%sky logs 0")
    assert logs.stdout.startswith("here\n")
    for command in ("logs all", "logs all --follow"):
        logs = notebook.run(f"%sky {command}")
        assert logs.stdout.startswith("0 │ here\n")
        assert lost in logs.sentence
    again = notebook.succeed("%%sky\nprint('on')")
    assert any("2 ssh nodes" in text for text in again.shown)


def test_restart_waits_for_a_node_like_a_run_before_it_ends_the_cluster(
    lab: Lab, client: Path, notebook: LiveNotebook
) -> None:
    notebook.succeed(
        "%%sky --cluster patient --hosts lab1,lab2 --plugin none --patience 1h\nkept = 1"
    )
    with cut(lab.hosts[1]):
        away = "lab2 cannot be reached since "
        until(lambda: away in notebook.succeed("%sky status").stdout)
        for line in ("%sky restart 1", "%sky restart"):
            refused = notebook.run(line)
            assert "no rank was restarted: there is no connection to lab2" in refused.sentence
    notebook.succeed("%%sky --gather kept\nkept += 1")
    assert notebook.value("kept") == [2, 2]
    notebook.succeed("%sky down")

    notebook.succeed("%%sky --cluster hasty --hosts lab1,lab2 --plugin none\npass")
    cell = notebook.start("%%sky\nimport time\nprint('here', flush=True)\ntime.sleep(600)")
    notebook.until(cell, lambda cell: "here" in cell.stdout)
    lab.hosts[1].power_off()
    try:
        assert "`%sky restart` starts a new cluster at once" in notebook.finish(cell).sentence
        assert "no rank was restarted" in notebook.run("%sky restart 0").sentence
        with impatient(client, lab.hosts[1]):
            restarted = notebook.run("%sky restart")
    finally:
        lab.hosts[1].start()
    assert "hasty: nobody reaches lab2: a new cluster takes its place" in restarted.stdout
    assert "lab2" in restarted.sentence
    # Although that failed, the same cluster is meant.
    notebook.succeed("%%sky --gather new\nnew = __import__('socket').gethostname()")
    assert notebook.value("new") == ["lab1", "lab2"]


def test_a_kernel_that_slept(lab: Lab, notebook: LiveNotebook, tmp_path: Path) -> None:
    stop = tmp_path / "stop"  # which all hosts see
    cell = notebook.start(
        "%%sky --hosts lab1,lab2 --plugin none --out n\nimport os, time\nn = 0\n"
        f"while not os.path.exists({str(stop)!r}):\n"
        "    print(n, flush=True)\n    n += 1\n    time.sleep(0.1)"
    )
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    kernel = psutil.Process(notebook.pid)
    kernel.suspend()
    # Agents let go of a client that gives no sign of life.
    while any(host.clients() for host in lab.hosts):
        time.sleep(0.1)
    kernel.resume()
    stop.touch()
    notebook.finish(cell)
    assert cell.error is None
    assert cell.stdout.split() == [str(n) for n in range(notebook.value("n"))]


def test_a_restarted_kernel_finds_its_machines_again_and_replaces_lost_ones(
    lab: Lab, notebook: LiveNotebook
) -> None:
    cell = notebook.start(
        "%%sky --hosts lab1,lab2,lab3 --nodes 2 --replace --plugin none --gather place\n"
        "import socket, time\n"
        "for n in range(150):\n    print(n, flush=True)\n    time.sleep(0.02)\n"
        "place = socket.gethostname()"
    )
    notebook.until(cell, lambda cell: "5\n" in cell.stdout)
    notebook.restart()
    notebook.succeed(BEGIN)
    lines = notebook.succeed("%sky attach").stdout.splitlines()[2:]
    assert lines == [str(n) for n in range(150)]
    assert notebook.value("place") == ["lab1", "lab2"]
    for process in lab.hosts[1].processes("jupyter_sky.node "):
        process.kill()
    notebook.run("%%sky\npass")  # it may not know yet
    notebook.succeed("%%sky --gather place\nimport socket\nplace = socket.gethostname()")
    assert notebook.value("place") == ["lab1", "lab3"]


def test_what_a_dead_cluster_left_on_hosts_is_collected(lab: Lab, notebook: LiveNotebook) -> None:
    notebook.succeed("%%sky --cluster other --hosts lab1,lab2 --plugin none\npass")
    notebook.restart()
    for process in lab.hosts[0].processes("jupyter_sky.node "):
        process.kill()
    notebook.succeed(BEGIN)
    # A host that has no time within two seconds is said to be unreachable.
    until(lambda: "gone" in notebook.succeed("%sky status").stdout)
    collected = notebook.succeed("%sky gc").stdout
    assert "what is left of it on lab1, lab2" in collected
    assert not any(host.processes("jupyter_sky") for host in lab.hosts)
    assert "No cluster" in notebook.succeed("%sky status").stdout


def test_of_a_start_that_was_killed_before_any_agent_only_the_entry_is_left(
    notebook: LiveNotebook,
) -> None:
    cell = notebook.start(
        "import asyncio, jupyter_sky\n"
        "async def launch(*args):\n"
        "    print('launching', flush=True)\n    await asyncio.sleep(600)\n"
        "jupyter_sky.SSH.launch = launch\n"
        "%sky up --hosts lab1,lab2 --plugin none --cluster early"
    )
    notebook.until(cell, lambda cell: "launching" in cell.stdout)
    notebook.restart()
    notebook.succeed(BEGIN)
    collected = notebook.succeed("%sky gc").stdout.splitlines()
    assert "removed early: its entry in the registry" in collected


def test_a_cluster_that_is_out_of_reach_can_be_given_up(
    lab: Lab, client: Path, notebook: LiveNotebook
) -> None:
    notebook.succeed("%%sky --hosts lab1,lab2 --plugin none\npass")
    notebook.restart()
    notebook.succeed(BEGIN)
    lab.hosts[1].power_off()
    try:
        with impatient(client, lab.hosts[1]):
            refused = notebook.run("%%sky\npass")
            down = notebook.succeed("%sky down")
        ended = down.stdout
        assert "removing what is left of it" in down.shown[0]
        assert "does not answer (lab2: " in refused.sentence
        assert "end it with `%sky down" in refused.sentence
        assert "lab2 could not be reached: what is left there" in ended
        assert not lab.hosts[0].processes("jupyter_sky")
    finally:
        lab.hosts[1].start()
    notebook.succeed("%%sky --hosts lab1,lab2 --plugin none\npass")


def test_the_doctor_looks_at_hosts(lab: Lab, client: Path, notebook: LiveNotebook) -> None:
    lab.hosts[1].power_off()
    try:
        with impatient(client, lab.hosts[1]):
            said = notebook.succeed("%sky doctor --hosts lab1,lab2").stdout
    finally:
        lab.hosts[1].start()
    _, first, second, between = said.split("\n\n")
    assert first.startswith("lab1:\nok   SSH")
    assert "agrees with the notebook's" in first
    assert second.startswith("lab2:\nfix  SSH")
    assert "is the machine on" in second or "cannot be reached" in second
    assert "?." not in second
    assert "lab2           cannot be tested: see what is wrong with it above." in between


@pytest.mark.parametrize("phase", ["connecting", "starting", "importing torch"])
def test_stop_while_machines_start_leaves_nothing(
    lab: Lab, notebook: LiveNotebook, phase: str
) -> None:
    cell = notebook.start("%%sky --hosts lab1,lab2,lab3\npass")
    notebook.until(cell, lambda cell: any(phase in text for text in cell.shown))
    notebook.interrupt()
    notebook.finish(cell)
    assert "was stopped; nothing is left running" in cell.sentence
    assert "interrupted" in cell.shown[0] and "failed" not in cell.shown[0]
    assert not any(host.processes("jupyter_sky.node") for host in lab.hosts)
    assert "No cluster" in notebook.succeed("%sky status").stdout
