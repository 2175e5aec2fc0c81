"""Accounts, QOS and their limits, as a real slurmdbd keeps them and Slurm enforces them."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.slurm.login import login_node
from jupyter_sky.providers.slurm.partitions import diagnose
from jupyter_sky.providers.slurm.provider import Slurm
from tests.cluster.cells import Cells
from tests.providers.slurm.controller import real_slurm
from tests.providers.slurm.test_provider import (
    interrupt_when,
    queue,
    start,
    submit_other,
    without_owner,
)
from tests.waiting import until

ACCOUNTS = (
    "add cluster lab",
    "add qos short",
    "modify qos short set MaxWall=10 MaxTRESPerJob=node=1",
    "add account physics",
    "add account chemistry",
    "modify account chemistry set GrpTRES=node=1 MaxSubmitJobs=1",
    "add user root account=physics qos=normal,short",
    "add user root account=chemistry",
    "modify user root where account=physics set MaxWall=30",
)

YOURS = (
    "chemistry with the QOS normal",
    "physics with the QOS normal and short, at most 00:30:00",
)


@pytest.fixture(scope="module")
def slurm() -> Iterator[Path]:
    with real_slurm(accounts=ACCOUNTS) as folder:
        yield folder


@pytest.fixture(autouse=True)
def nothing_is_left(slurm: Path) -> Iterator[None]:
    yield
    until(lambda: not queue())
    assert not without_owner()
    assert not registry.rows()


@pytest.mark.parametrize(
    ("options", "advice"),
    [
        ({"account": "moon"}, "Invalid account .*: name one of yours with `--account` .yours: "),
        ({"qos": "moon"}, "Invalid qos specification: name one of yours with `--qos` .yours: "),
        ({"account": "chemistry", "qos": "short"}, "Invalid qos specification: name one of yours"),
    ],
)
def test_who_names_what_is_not_his_is_told_what_is(options: dict[str, str], advice: str) -> None:
    with pytest.raises(SkyError, match=f"Slurm says: .*{advice}") as refused:
        start("refused", provider=Slurm(**options))
    assert all(each in str(refused.value) for each in YOURS)


@pytest.mark.parametrize(
    ("options", "nodes", "reason"),
    [
        ({"qos": "short", "time": "20"}, 1, "your QOS allows no more time for a job: type a short"),
        ({"time": "50"}, 1, "your account allows no more time for a job: type a shorter `--time`"),
        ({"qos": "short"}, 2, "your QOS allows no more nodes for a job: type fewer `--nodes`"),
    ],
)
def test_a_job_above_a_limit_does_not_wait_for_ever(
    options: dict[str, str], nodes: int, reason: str
) -> None:
    limited = Slurm(**{"account": "physics", "time": "5", **options})
    with pytest.raises(UsageError, match=f"would wait for ever .*: {reason}"):
        start("much", provider=limited, nodes=nodes)


def test_limits_that_others_use_up_are_said_while_it_waits() -> None:
    said: list[str] = []
    reason = "pending: your account has all the nodes in use that it may, or this asks for more"
    stopping = threading.Thread(target=interrupt_when, args=[lambda: reason in str(said)])
    stopping.start()
    with pytest.raises(KeyboardInterrupt):
        start("grouped", said, provider=Slurm(account="chemistry"), nodes=2)
    stopping.join()
    until(lambda: not queue())
    other = submit_other("--account=chemistry")
    try:
        with pytest.raises(SkyError, match="your account allows no more jobs in the queue: wait"):
            start("second", provider=Slurm(account="chemistry"))
    finally:
        subprocess.run(["scancel", other], check=True)


def test_a_cluster_counts_for_its_account_and_the_user_sees_which_there_are() -> None:
    cluster = start("paid", provider=Slurm(account="physics", qos="short", time="5"))
    try:
        cells = Cells(cluster)
        cells.run("import os")
        found = "os.environ['SLURM_JOB_ACCOUNT'], os.environ['SLURM_JOB_QOS']"
        assert cells.ask(found) == [("physics", "short")]
    finally:
        cluster.down()
    found = [each for each in diagnose(login_node(None)) if each.name == "account"]
    assert {*YOURS} <= {each.found for each in found}
    command = [sys.executable, "-P", "-m", "jupyter_sky", "offers", "--provider", "slurm"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert all(f"account {each}\n" in said for each in YOURS)
