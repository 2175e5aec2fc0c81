"""What a launch has left is found and given back, by who started it and as who started it."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.notebook.commands.life.gc import remove_orphans
from jupyter_sky.paths import home
from jupyter_sky.providers.aws import AWS, inventory, local_store
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2.instance import Instance
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.faults import failing
from tests.providers.aws.starting import SPEC, provider, start

Left = Callable[[], list[str]]


@pytest.fixture
def ready(account: Account, subnet: str, clients: Clients) -> str:
    """A subnet to start in; types and prices are known, and what was asked so far is forgotten."""
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    return subnet


def test_what_another_registry_started_is_left_alone(
    account: Account, ready: str, left: Left, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "other"))

    account.fault = failing("TerminateInstances")
    with pytest.raises(SkyError, match=r"something may still be there and cost money \(train: 4 i"):
        start(ready)
    account.fault = None
    assert registry.find("train") is not None
    [rental], _ = cloud_resources.find()
    assert rental.is_orphaned, "the kernel that started it may still be alive"
    (home() / "registry.sqlite").unlink()
    [rental], _ = cloud_resources.find()
    assert rental.is_orphaned, "its own registry may be lost, and it is known all the same"
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "third"))
    local_store.add_location("us-east-1")
    [rental], _ = cloud_resources.find()
    assert not rental.is_known
    assert not rental.is_orphaned
    rental.remove()
    assert left() == []


def test_a_computer_that_gets_another_name_keeps_its_clusters(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))
    monkeypatch.setattr("socket.gethostname", lambda: "laptop.at-work")
    ours = local_store.owner()
    monkeypatch.setattr("socket.gethostname", lambda: "laptop.at-home")
    assert local_store.owner() == ours
    shutil.copytree(tmp_path / "home", tmp_path / "copy")
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "copy"))
    assert local_store.owner() != ours, "the clusters of a copy are not those of the original"


def credentials_of(account: str) -> dict[str, str]:
    """Return the variables of a user who has another account, too."""
    import boto3

    role = f"arn:aws:iam::{account}:role/other"
    found = boto3.client("sts").assume_role(RoleArn=role, RoleSessionName="other")["Credentials"]
    return {
        "AWS_ACCESS_KEY_ID": found["AccessKeyId"],
        "AWS_SECRET_ACCESS_KEY": found["SecretAccessKey"],
        "AWS_SESSION_TOKEN": found["SessionToken"],
    }


def test_what_another_account_does_not_know_is_not_gone(
    account: Account, ready: str, left: Left, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    account.fault = failing("TerminateInstances")
    with pytest.raises(SkyError, match="may still be there"):
        start(ready)
    account.fault = None
    held = left()
    [rental], _ = cloud_resources.find()
    about = {"id": rental.resources.instances[0], "cluster": rental.resources.id}
    machine = Instance("root@10.77.0.4", "", "", "", "", (), location="us-east-1", **about)
    with monkeypatch.context() as elsewhere:
        for name, value in credentials_of("111111111111").items():
            elsewhere.setenv(name, value)
        remove_orphans(None, lambda options: AWS())
        said = capsys.readouterr().out
        assert "the cluster is in the AWS account 123456789012, and your credentials are" in said
        assert registry.find("train"), "it is known as long as it costs something"
        for ask in (inventory.ended_at, inventory.stopped_at):
            with pytest.raises(SkyError, match="of 111111111111: use those of 123456789012"):
                ask([machine])
        assert machine._why_gone() is None
        assert "and your credentials are of 111111111111" in str(machine.let_in())
    assert left() == held
    remove_orphans(None, lambda options: AWS())
    assert left() == []
    assert registry.find("train") is None
    account.forget_ended()
    assert inventory.ended_at([machine]) == [math.inf], "it has ended, and nobody knows when"


def test_gc_asks_as_the_profile_that_started(
    account: Account,
    subnet: str,
    left: Left,
    work_profile: Path,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Where nobody has asked with other credentials, which may see the same.
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))

    account.fault = failing("TerminateInstances")
    account.calls.clear()
    with pytest.raises(SkyError, match="something may still be there"):
        start(subnet, profile="work")
    assert {call.who for call in account.calls} == {"worker"}
    account.fault = None
    account.calls.clear()
    [rental], _ = cloud_resources.find()
    assert str(rental).endswith("in us-east-1 as work")
    profiles = work_profile.read_text()
    work_profile.write_text("")
    found, [sentence] = cloud_resources.find()
    assert "what is rented in us-east-1 as work cannot be listed: The config profile" in sentence
    assert not [each for each in found if each.resources.what]
    work_profile.write_text(profiles)
    rental.remove()
    assert {call.who for call in account.calls} == {"worker"}
    assert left() == []


@pytest.mark.usefixtures("work_profile")
def test_gc_looks_at_the_usual_account_beside_those_of_profiles(
    account: Account, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))
    local_store.add_location("us-east-1 as work")

    def askers() -> tuple[set[str], list[str]]:
        account.calls.clear()
        _, trouble = inventory.list_resources(everywhere=True)
        return {each.who for each in account.calls if each.action == "DescribeTags"}, trouble

    with monkeypatch.context() as usual:
        usual.delenv("AWS_DEFAULT_REGION")  # the user names regions in cells
        assert askers() == ({"worker", "testing"}, [])
        usual.delenv("AWS_ACCESS_KEY_ID")
        assert askers() == ({"worker"}, []), "who has profiles alone rents nothing without one"
        usual.setenv("AWS_PROFILE", "gone")
        who, [sentence] = askers()
    assert who == {"worker"}
    assert sentence.startswith("what is rented at AWS cannot be listed: The config profile (gone)")
