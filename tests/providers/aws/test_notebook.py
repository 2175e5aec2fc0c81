"""The magic on machines that are rented, in a real kernel."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.server.actions import command_line
from tests.notebook.kernels import LiveNotebook
from tests.paths import ROOT
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.machines import Machines, seconds_left
from tests.providers.aws.stand_in.notebook import set_up


@pytest.fixture(scope="module")
def opened(
    server: Account, with_catalogs: None, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[LiveNotebook]:
    """One for all tests of this file: its kernel imports what takes a second."""
    path = tmp_path_factory.mktemp("notebook") / "n.ipynb"
    made = LiveNotebook(path, PYTHONPATH=str(ROOT), **server.environment)
    yield made
    made.close()


@pytest.fixture
def notebook(opened: LiveNotebook, machines: Machines, clients: Clients) -> LiveNotebook:
    set_up(opened, subnet=machines.subnet(clients), addresses="private", user="root")
    return opened


def test_a_cell_on_instances(
    notebook: LiveNotebook, machines: Machines, left: Callable[[], list[str]]
) -> None:
    table = notebook.succeed("%sky offers --gpu a100 --nodes 4").stdout
    assert "p4d.24xlarge   8 × A100" in table
    cheap = "%sky offers --gpu a100 --nodes 4 --max-price 30"
    assert "cost $83.25 an hour: raise" in notebook.run(cheap).sentence
    assert "p4d.24xlarge   8 × A100" in notebook.succeed(f"{cheap} --spot").stdout
    report = notebook.succeed("%sky doctor --provider aws").stdout
    assert "ok   you            arn:aws:" in report
    assert "default subnets in us-east-1a, us-east-1b" in report
    assert '"ec2:RunInstances"' in report
    cell = notebook.start("%%sky --provider aws --nodes 2 --gpu A100\npass")
    assert notebook.answer("n") == (
        "Start 2 × p4d.24xlarge for $41.62 an hour in us-east-1, account 123456789012? [y/N] "
    )
    sentence = notebook.finish(cell).sentence
    assert "nothing was started; to start without a question, add `--max-price`" in sentence
    cell = notebook.run(
        "get_ipython().kernel._allow_stdin = False\n"
        "get_ipython().run_cell_magic('sky', '--provider aws --nodes 2 --gpu A100', 'pass')"
    )
    assert "is more than $10, and there is nobody to ask: add `--max-price`" in cell.sentence
    cell = notebook.run("%%sky --provider aws --nodes 2 --gpu GH200\npass")
    assert "AWS has no GH200 in us-east-1" in cell.sentence
    assert left() == []
    cell = notebook.succeed(
        "%%sky --provider aws --nodes 2 --cpus 4+ --max-cost 5 --gather where\n"
        "import socket\nwhere = socket.gethostname()"
    )
    assert any("2 aws nodes, 2 ranks on CPU, $0.42 an hour" in text for text in cell.shown)
    assert any("$0.0" in strip["text/html"] for strip in cell.strips)
    assert notebook.value("where") == [host.name for host in machines.hosts.values()]
    assert "$0.42 an hour" in notebook.succeed("%sky status").stdout
    made = notebook.succeed("%sky snapshot").stdout
    assert "15 GB for at most about $0.75 a month. New clusters in us-east-1 with the same" in made
    assert "snapshots      jupyter-sky-" in notebook.succeed("%sky doctor --provider aws").stdout
    assert "kept: the snapshot jupyter-sky-" in notebook.succeed("%sky gc").stdout
    removed = notebook.succeed(f"%sky snapshot --remove {made.split()[0]}").stdout
    assert removed.startswith(f"removed the snapshot {made.split()[0]} of ")
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    cell = notebook.succeed("%%sky\nprint(where)")
    assert any("still up: connected again" in text for text in cell.shown)
    assert "ended; nothing is left running" in notebook.succeed("%sky down").stdout
    assert left() == []
    assert not any(host.is_up for host in machines.hosts.values())


def test_spot_or_on_demand_after_prices_were_compared(
    notebook: LiveNotebook, account: Account, left: Callable[[], list[str]]
) -> None:
    def refuse_spot(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances" and "InstanceMarketOptions.MarketType" in call.params:
            return refusal("InsufficientInstanceCapacity", "We have no sufficient capacity.")
        return carry_out()

    account.fault = refuse_spot
    cell = notebook.succeed(
        "%%sky --provider ssh,aws --hosts 127.0.0.1:1 --nodes 2 --cpus 4+ --spot-or-on-demand\n"
        "print('on demand')"
    )
    compared, no_ssh, then_spot, no_spot, then_usual, printed = cell.stdout.splitlines()
    assert compared == ("ssh costs nothing; aws spot costs $0.16 an hour; aws costs $0.42 an hour")
    assert no_ssh.startswith("not ssh: ")
    assert then_spot == "now aws spot, which costs $0.16 an hour"
    assert no_spot.startswith("not aws spot: ") and "capacity" in no_spot
    assert then_usual == "now aws, which costs $0.42 an hour"
    assert printed == "on demand"
    assert any("2 aws nodes, 2 ranks on CPU, $0.42 an hour" in text for text in cell.shown)
    # What is refused is listed, and said once; what `%sky down` has ended has not ended itself.
    account.fault = lambda call, carry_out: refusal("RequestExpired", "it is too late")
    expired = "your session with AWS has expired: run `aws sso login`"
    assert f"type `%sky gc` to try again: {expired}" in notebook.run("%sky down").sentence
    heading, *_, trouble = notebook.succeed("%sky status").stdout.splitlines()
    assert "nodes × ranks" in heading
    assert trouble.startswith(expired)
    assert notebook.succeed("%sky gc").stdout.count(expired) == 1
    account.fault = None
    status = notebook.succeed("%sky status")
    assert status.stderr.endswith(
        "is gone, with what its ranks had: it was ended, has ended itself, or has lost a node.\n"
    )
    assert status.stdout.startswith("No cluster is running")
    account.fault = refuse_spot
    # Who is asked and says no, is not asked again for something else.
    cell = notebook.start("%%sky --provider aws,ssh --gpu A100 --nodes 2 --selection first\npass")
    assert "for $41.62 an hour in us-east-1, account 123456789012? [y/N]" in notebook.answer("n")
    assert "nothing was started" in notebook.finish(cell).sentence
    assert left() == []


def test_stop_while_machines_boot_leaves_nothing(
    notebook: LiveNotebook, account: Account, machines: Machines, left: Callable[[], list[str]]
) -> None:
    spent_before = sum(each.dollars for each in registry.all_spent())
    # They are rented, and never switched on.
    account.on_run = lambda instance, address, params: None
    cell = notebook.start("%%sky --provider aws --nodes 2\npass")
    notebook.until(cell, lambda cell: any("to boot" in text for text in cell.shown))
    assert left() != []
    notebook.interrupt()
    assert "was stopped; nothing is left running" in notebook.finish(cell).sentence
    assert left() == []
    # What they have cost until then is not forgotten.
    assert sum(each.dollars for each in registry.all_spent()) > spent_before
    assert "node hours" in notebook.succeed("%sky costs").stdout
    assert "No cluster" in notebook.succeed("%sky status").stdout


def test_autostop_of_a_task_file_keeps_the_disks(
    notebook: LiveNotebook, machines: Machines, tmp_path: Path, left: Callable[[], list[str]]
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("resources: {infra: aws, cpus: 4+, autostop: 10}\nrun: echo ran")
    notebook.succeed(f"%sky launch {file} --cluster task")
    [row] = registry.rows()
    assert row.spec["autostop"] is True
    assert "ran" in notebook.succeed(f"%sky launch {file} --cluster task").stdout
    assert "task: stopped" in notebook.succeed("%sky stop task").stdout
    # Machines that do not fit are not started, which would be paid for.
    for option, why in (
        (
            "--idle-timeout 5m",
            "cluster task was started with --idle-timeout 10m, and the cell asks",
        ),
        (
            "--nodes 2",
            "num_nodes is 2, but cluster task has 1 node: ask for fewer, or type `%sky st",
        ),
        ("--gpu A100", "cluster task was started without --gpu, and the cell asks for a100"),
        ("--provider local", "cluster task was started with --provider aws, and the cell asks"),
    ):
        assert why in notebook.run(f"%sky launch {file} --cluster task {option}").sentence
    [row] = registry.rows()
    assert row.is_stopped and not row.started
    # As at SkyPilot, the next launch starts it again.
    assert "ran" in notebook.succeed(f"%sky launch {file} --cluster task").stdout
    # Once its agent has ended, its machine is about to stop, and cannot be started yet.
    [host] = [each for each in machines.hosts.values() if each.is_up]
    host.processes("jupyter_sky[.]node /")[0].kill()
    assert "task is lost" in notebook.run("%%sky --cluster task\npass").sentence
    sentence = notebook.run(f"%sky launch {file} --cluster task").sentence
    assert "cluster task is about to stop by itself: `%sky start task` starts it" in sentence
    notebook.succeed("%sky down task")
    # Where it would take them, that is said before anything starts.
    for option, why in (
        ("--spot", "AWS stops no spot instances"),
        ("--max-cost 5", "--max-cost ends machines with their disks"),
    ):
        cell = notebook.run(f"%sky launch {file} --cluster task --max-price 0.001 {option}")
        assert f"autostop ends the cluster with its disks: {why}\n" in cell.stderr
        assert "raise --max-price" in cell.sentence
    file.write_text("resources: {infra: aws, cpus: 4+, autostop: {down: true}}")
    cell = notebook.run(f"%sky launch {file} --cluster task --max-price 0.001 --spot")
    assert "ends the cluster" not in cell.stderr
    assert left() == []


def test_autostop_of_a_task_file_leaves_a_cluster_that_is_up_as_it_is(
    notebook: LiveNotebook, tmp_path: Path, left: Callable[[], list[str]]
) -> None:
    file = tmp_path / "task.yaml"
    file.write_text("resources: {infra: aws, cpus: 4+, autostop: 10}\nrun: echo ran")
    notebook.succeed("%sky up --provider aws --cpus 4+ --idle-timeout 10m --cluster task")
    cell = notebook.succeed(f"%sky launch {file} --cluster task")
    assert "ran" in cell.stdout
    assert "ends the cluster" not in notebook.run(f"%sky launch {file} --spot -c task").stderr
    cell = notebook.run(f"%sky launch {file} --cluster task --autostop")
    assert "--autostop" in cell.sentence
    notebook.succeed("%sky down task")
    assert left() == []


def test_a_cell_that_is_retried_keeps_to_its_limit(
    notebook: LiveNotebook, machines: Machines, clients: Clients, left: Callable[[], list[str]]
) -> None:
    notebook.succeed("%%sky --provider aws --nodes 1 --cpus 4+ --max-cost 5\npass")
    whole = seconds_left(list(machines.hosts.values())[-1])
    notebook.succeed(_SPENT.format(3))
    cell = notebook.start("%%sky --retry 3\nimport time\nprint('begun')\ntime.sleep(60)")
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 1)
    clients.ec2.terminate_instances(InstanceIds=[list(machines.hosts)[-1]])
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 2)
    rest = seconds_left(list(machines.hosts.values())[-1])
    assert rest == pytest.approx(whole * 2 / 5, rel=0.05)
    clients.ec2.terminate_instances(InstanceIds=[list(machines.hosts)[-1]])
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 3)
    notebook.interrupt()
    notebook.finish(cell)
    # What was asked for is what it has.
    notebook.succeed("%%sky --max-cost 5\npass")
    notebook.succeed(_SPENT.format(2))
    cell = notebook.start("%%sky --retry 2\nimport time\nprint('begun')\ntime.sleep(60)")
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 1)
    clients.ec2.terminate_instances(InstanceIds=[list(machines.hosts)[-1]])
    sentence = notebook.finish(cell).sentence
    assert "--max-cost is spent: the cell is not run again" in sentence
    assert left() == []


def test_the_limit_of_a_retried_cell_is_the_newest_one(
    notebook: LiveNotebook, machines: Machines, clients: Clients, left: Callable[[], list[str]]
) -> None:
    def rest_after(spent: float) -> float:
        notebook.succeed(_SPENT.format(spent))
        cell = notebook.start("%%sky --retry 2\nimport time\nprint('begun')\ntime.sleep(60)")
        notebook.until(cell, lambda cell: cell.stdout.count("begun") == 1)
        clients.ec2.terminate_instances(InstanceIds=[list(machines.hosts)[-1]])
        notebook.until(cell, lambda cell: cell.stdout.count("begun") == 2)
        notebook.interrupt()
        notebook.finish(cell)
        return seconds_left(list(machines.hosts.values())[-1])

    subnet = machines.subnet(clients)
    set_up(notebook, subnet=subnet, addresses="private", user="root", max_cost=5)
    notebook.succeed("%%sky --provider aws --nodes 1 --cpus 4+\npass")
    whole = seconds_left(list(machines.hosts.values())[-1])
    assert rest_after(spent=3) == pytest.approx(whole * 2 / 5, rel=0.05)
    # One that was started with a higher limit may cost that, and no more.
    notebook.succeed("%sky stop")
    notebook.succeed("%sky start --max-cost 10")
    assert rest_after(spent=8) == pytest.approx(whole * 2 / 5, rel=0.05)
    assert rest_after(spent=1) == pytest.approx(whole * 1 / 5, rel=0.05)
    notebook.succeed("%sky down")
    assert left() == []


def test_a_price_that_was_agreed_to_is_not_asked_for_at_night(
    notebook: LiveNotebook, machines: Machines, clients: Clients, left: Callable[[], list[str]]
) -> None:
    subnet = machines.subnet(clients)
    set_up(notebook, subnet=subnet, addresses="private", user="root", ask_above=0.1)
    line = "%%sky --provider aws --nodes 1 --cpus 4+ --retry 2"
    cell = notebook.start(f"{line}\nimport time\nprint('begun')\ntime.sleep(60)")
    assert notebook.answer("y").endswith("[y/N] ")
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 1)
    clients.ec2.terminate_instances(InstanceIds=[list(machines.hosts)[-1]])
    notebook.until(cell, lambda cell: cell.stdout.count("begun") == 2)
    notebook.interrupt()
    notebook.finish(cell)
    notebook.succeed("%sky down")
    assert left() == []


def test_a_price_that_was_agreed_to_in_the_sidebar_is_no_limit(
    notebook: LiveNotebook, machines: Machines, clients: Clients, left: Callable[[], list[str]]
) -> None:
    subnet = machines.subnet(clients)
    set_up(notebook, subnet=subnet, addresses="private", user="root", ask_above=0.3)
    notebook.succeed("%%sky --provider aws --nodes 1 --cpus 4+ --cluster grows\npass")
    # As where no kernel is connected: two cost more than asks nobody.
    words = command_line("scale", "grows", {"nodes": 2, "max_price": 0.43})
    notebook.succeed(f"%sky {shlex.join(words)}")
    row = registry.find("grows")
    assert row is not None
    assert "--nodes 2" in row.spec["line"] and "--max-price" not in row.spec["line"]
    notebook.succeed("%sky down grows")
    assert left() == []


_SPENT = """
import time
from jupyter_sky.cluster.cost_meter import CostMeter
magics = get_ipython().magics_manager.magics["cell"]["sky"].__self__
magics._session.find()._controller.cost.meter = CostMeter({}, time.time())
"""
