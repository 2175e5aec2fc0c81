"""``--dry-run`` says what would be rented, made and paid, and changes nothing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws import AWS, local_store
from jupyter_sky.providers.aws.network import address
from jupyter_sky.providers.spec import ClusterSpec
from tests.notebook.conftest import Notebook
from tests.paths import ROOT
from tests.providers.aws.stand_in import iam
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.faults import denying
from tests.providers.aws.starting import SPEC, provider

READS = ("Describe", "Get", "List")


def lines(text: str) -> dict[str, list[str]]:
    """Return what is said, by what it is about."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        about, _, said = line.partition("  ")
        found.setdefault(about, []).append(said.strip())
    return found


def test_it_says_everything_and_asks_only(account: Account, subnet: str) -> None:
    wanted = provider(subnet, max_cost=40.0, tags={"team": "vision"})
    account.calls.clear()
    said = lines(wanted.plan(SPEC))
    assert not [each for each in account.actions if not each.startswith(READS)]
    assert said["account"] == ["123456789012"]
    assert said["you"][0].startswith("arn:aws:")
    assert said["profile"] == ["the usual one"]
    assert said["region"] == ["us-east-1"]
    assert said["zones, in order"] == [f"us-east-1a ({subnet})"]
    assert said["type"] == ["4 × p4d.24xlarge: 8 × A100, 96 CPUs, 1152 GB each"]
    assert said["image"] == ["ami-1e749f67, which lets in root"]
    assert said["price"] == ["4 × p4d.24xlarge for $83.24 an hour"]
    assert said["limit"] == [
        "$40.00 in all, spent after 28 min at the earliest; it ends after 1 h 00 min without a run "
        "(for $83.24)"
    ]
    assert said["in the price"] == [
        "4 disks of 100 GB for $0.0438 an hour; not traffic out of AWS, which no limit counts"
    ]
    assert said["quota"] == [
        "Running On-Demand P instances: 384 vCPUs are needed, and 0 run, of 192: ask for more at "
        "Service Quotas in the AWS console"
    ]
    key, group, placement, instances, disks, interfaces, tags = said["would be made"]
    assert key == "the key pair jupyter-sky-ID"
    assert group.startswith("the security group jupyter-sky-ID: SSH from 127.")
    assert placement == "the placement group jupyter-sky-ID"
    assert instances == "4 p4d.24xlarge instances"
    assert disks.startswith("4 disks of 100 GB, encrypted with AWS's key")
    assert interfaces == "4 network interfaces with a private address, with EFA"
    assert "team" in tags and "jupyter-sky-owner" in tags
    assert registry.rows() == []


def test_what_is_paid_besides_instances(account: Account, subnet: str) -> None:
    two = ClusterSpec("x", nodes=2)
    said = lines(AWS(subnet=subnet, disk=500, max_cost=1.0).plan(two))
    assert said["in the price"] == [
        "2 disks of 500 GB for $0.11 an hour and 2 public IPs for $0.01 an hour; not traffic out "
        "of AWS, which no limit counts"
    ]
    assert said["price"] == ["2 × d3.xlarge for $0.52 an hour"]
    assert said["limit"][0].startswith("$1.00 in all, spent after 1 h 55 min at the earliest")
    with pytest.raises(UsageError, match=r"and 2 of them cost \$0.52 an hour: raise --max-price"):
        AWS(subnet=subnet, disk=500, max_price=0.5).plan(two)
    # Where AWS does not tell the price of disks, limits count what no region asks more than.
    (local_store.folder() / "storage-eu-west-1-gp3.json").unlink(missing_ok=True)
    account.fault = denying("GetProducts")
    [paid] = lines(AWS(region="eu-west-1").plan(ClusterSpec("x")))["in the price"]
    assert paid.startswith(
        "1 disk of 100 GB at an unknown price, $0.0219 at most and 1 public IP for $0.005 an hour;"
    )


@pytest.mark.parametrize("disk", [101, 103, 107])
def test_the_price_that_a_refusal_names_is_enough(account: Account, subnet: str, disk: int) -> None:
    two = ClusterSpec("x", nodes=2)
    with pytest.raises(UsageError) as caught:
        AWS(subnet=subnet, disk=disk, max_price=0.1).plan(two)
    [named] = re.findall(r"cost \$([\d.]+) an hour: raise", str(caught.value))
    assert "d3.xlarge" in AWS(subnet=subnet, disk=disk, max_price=float(named)).plan(two)


def test_burstable_types_cost_more_when_they_are_busy(account: Account, subnet: str) -> None:
    two = ClusterSpec("x", nodes=2)
    wanted = {"subnet": subnet, "addresses": "private", "instance_type": "t3.xlarge"}
    said = lines(AWS(max_cost=1.0, **wanted).plan(two))
    assert said["price"] == [
        "2 × t3.xlarge for $0.42 an hour (and up to $0.40 for processors that are always busy)"
    ]
    assert said["limit"][0].startswith("$1.00 in all, spent after 1 h 13 min at the earliest")


def test_quotas_that_may_not_be_read(account: Account, subnet: str) -> None:
    account.fault = denying("ListServiceQuotas")
    [quota] = lines(provider(subnet).plan(SPEC))["quota"]
    assert "the quota is not known (your AWS user may not do servicequotas:ListServiceQ" in quota


def test_the_policy_allows_it(account: Account, subnet: str) -> None:
    from jupyter_sky.providers.aws.iam_policy import policy

    iam.enforce(account, policy())
    assert "of 192" in provider(subnet).plan(SPEC)


def test_what_would_not_start_says_the_same(account: Account, subnet: str) -> None:
    with pytest.raises(UsageError, match="raise --max-price, or try --spot"):
        AWS(subnet=subnet, max_price=1.0).plan(SPEC)
    # Nothing of it is said where only spot is there.
    either = AWS(subnet=subnet, addresses="private", spot_or_on_demand=True).plan(SPEC)
    assert "4 × p4d.24xlarge spot for $27.78 an hour" in either


def test_what_only_spot_is_cheap_enough_for_is_not_refused(account: Account, subnet: str) -> None:
    """It is on demand, at three times the price, that it would cost too much."""
    options: dict[str, Any] = {"subnet": subnet, "addresses": "private"}
    options["spot_or_on_demand"] = True
    either = AWS(**options, max_price=50.0)
    either.check(SPEC, ())
    assert either.price_of(SPEC) == pytest.approx(27.78, abs=0.01)
    with pytest.raises(UsageError, match="raise --max-price"):
        AWS(**options, max_price=1.0).check(SPEC, ())


@pytest.fixture
def notebook(
    account: Account, subnet: str, work_profile: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Notebook]:
    # A new shell takes the place of the main module.
    monkeypatch.setitem(sys.modules, "__main__", sys.modules["__main__"])
    made = Notebook()
    settings = {"subnet": subnet, "addresses": "private", "user": "root"}
    made.run(f"%config Sky.aws = {settings!r}")
    yield made
    made.close()


def test_up_with_it(notebook: Notebook, account: Account) -> None:
    line = "%sky up --provider aws --nodes 2 --gpu A100 --dry-run --profile work"
    account.calls.clear()
    said = notebook.run(line)
    assert {call.who for call in account.calls} == {"worker"}
    assert not [each for each in account.actions if not each.startswith(READS)]
    assert "nothing was started; `%sky up` without --dry-run would start:" in said
    assert lines(said)["profile"] == ["work"]
    assert "2 × p4d.24xlarge for $41.62 an hour" in said
    assert "No cluster" in notebook.run("%sky status")
    # In a cell, --profile is torch's profiler.
    table = notebook.run("%sky offers --gpu A100 --aws-profile work")
    assert "p4d.24xlarge" in table
    said = notebook.run("%sky up --nodes 2 --dry-run")
    assert said.splitlines()[-1] == "2 local nodes, which cost nothing"


def test_an_address_that_nobody_tells(
    account: Account, monkeypatch: pytest.MonkeyPatch, subnet: str
) -> None:
    monkeypatch.setattr(address, "_WHO_AM_I", "https://127.0.0.1:1")
    assert "SSH from this computer, and" in AWS(subnet=subnet).plan(ClusterSpec("x"))
    with pytest.raises(UsageError, match=r"set it, as in `%config Sky.aws = \{'ssh_from': '203"):
        address.seen_from_outside()


def test_in_a_terminal(account: Account, tmp_path: Path) -> None:
    words = [
        "up",
        "--cluster",
        "train",
        "--provider",
        "aws",
        "--nodes",
        "2",
        "--gpu",
        "A100",
        "--dry-run",
    ]
    profile = tmp_path / "profile_default"
    profile.mkdir()
    (profile / "ipython_config.py").write_text(
        "c = get_config()\nc.Sky.aws = {'ssh_from': '192.0.2.1/32'}\n"
    )
    account.calls.clear()
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_sky", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "train: nothing was started; `jupyter sky up` without --dry-run would" in done.stdout
    assert "2 × p4d.24xlarge for $41.63 an hour" in done.stdout
    assert not [each for each in account.actions if not each.startswith(READS)]


def test_a_terminal_whose_output_goes_into_a_file_sees_the_question(
    account: Account, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text("print('here')")
    words = ["train.py", "--provider", "aws", "--nodes", "2", "--gpu", "A100"]
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_sky", "run", *words],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT), "IPYTHONDIR": str(tmp_path)},
        input="n\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, ""), done.stderr
    assert "Start 2 × p4d.24xlarge for $41.63 an hour in us-east-1" in done.stderr
    assert "nothing was started; to start without a question, add `--max-price`" in done.stderr


def test_a_program_whose_output_goes_to_objects_that_only_write_sees_the_question(
    account: Account, tmp_path: Path
) -> None:
    (tmp_path / "train.py").write_text(
        "import sys\nimport jupyter_sky as sky\n\n"
        "class Log:\n    def __init__(self, file): self.write = file.write\n"
        "    def flush(self): pass\n\n"
        "sys.stdout, sys.stderr = Log(sys.stdout), Log(sys.stderr)\n"
        "with sky.ComputePool(nodes=2, accelerator='A100', provider=sky.AWS()):"
        " pass\n"
    )
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        input="n\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert "an hour in us-east-1" in done.stderr
    assert "nothing was started; to start without a question" in done.stderr.splitlines()[-1]


def test_regions_are_tried_in_their_order(notebook: Notebook, account: Account) -> None:
    notebook.run("%config Sky.aws = {'user': 'root', 'ssh_from': '192.0.2.1/32'}")
    said = notebook.run(
        "%sky up --provider aws --region eu-west-1,us-east-1 --gpu V100 --dry-run --profile work"
    )
    assert "would start the first of these that it gets:" in said
    assert lines(said)["region"] == ["eu-west-1", "us-east-1"]


def test_a_specification_of_no_gpu(account: Account, subnet: str) -> None:
    text = AWS(subnet=subnet, addresses="private", idle_timeout=None).plan(ClusterSpec("x"))
    said = lines(text)
    assert said["limit"] == ["none: it costs that until `%sky down`"]
    spot = AWS(subnet=subnet, addresses="private", spot=True, max_cost=1.0).plan(ClusterSpec("x"))
    # What the price may rise to counts.
    assert lines(spot)["limit"][0].startswith("$1.00 in all, spent after 10 h 59 min at the ear")
    assert not any("placement group" in each for each in said["would be made"])
