"""Whatever happens while a cluster starts or ends, nothing of it goes on costing money."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.aws import local_store
from jupyter_sky.providers.aws.clients import Clients
from tests.forks import forks_with
from tests.providers.aws.stand_in.account import Account, Answer, Call, CutConnection, refusal
from tests.providers.aws.starting import SPEC, Booting, provider, start, start_and_fail

Left = Callable[[], list[str]]

READS = ("Describe", "Get")
LAUNCH = [
    "DescribeSubnets",
    "ImportKeyPair",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "CreatePlacementGroup",
    "DescribeImages",
    "GetParameter",
    "DescribeImages",
    "RunInstances",
    "DescribeInstances",
]
"""What launching asks of AWS, once types and prices are known."""

LOOK = [
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
    "DescribeVolumes",
    "DescribeSecurityGroups",
    "DescribeKeyPairs",
    "DescribePlacementGroups",
]
GIVE_BACK = [
    "TerminateInstances",
    *LOOK,
    "DeleteKeyPair",
    "DeleteSecurityGroup",
    "DeletePlacementGroup",
    *LOOK,
]
WHOLE_LIFE = LAUNCH + GIVE_BACK


@pytest.fixture
def ready(account: Account, subnet: str, clients: Clients) -> str:
    """A subnet to start in; types and prices are known, and what was asked so far is forgotten."""
    provider(subnet).check(SPEC, [])
    account.calls.clear()
    return subnet


def test_what_is_asked_of_aws(account: Account, ready: str, left: Left) -> None:
    with pytest.raises(Booting):
        start(ready)
    # Ending a cluster looks once more whether anything is there.
    assert account.actions == WHOLE_LIFE + LOOK
    assert left() == []


@pytest.mark.parametrize("number", range(1, len(LAUNCH) + 1), ids=LAUNCH)
def test_a_refused_call_takes_everything_back(
    account: Account, ready: str, left: Left, number: int
) -> None:
    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.number == number:
            json_spoken = call.action == "GetParameter"
            text = "You are not authorized to perform: ec2:Something"
            return refusal("UnauthorizedOperation", text, "403 Forbidden", json_spoken)
        return carry_out()

    account.fault = refuse
    with pytest.raises(SkyError, match="your AWS user may not do ec2:Something"):
        start(ready)
    assert left() == []
    assert registry.find("train") is None
    assert _keys() == []


@pytest.mark.parametrize("number", range(1, len(LAUNCH) + 1), ids=LAUNCH)
def test_a_lost_answer_makes_nothing_twice(
    account: Account, ready: str, left: Left, number: int
) -> None:
    lost: list[Call] = []
    instances: list[str] = []
    account.on_run = lambda instance, address, params: instances.append(instance)

    def lose(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.number == number and not lost:
            lost.append(call)
            raise CutConnection
        return answer

    account.fault = lose
    try:
        with pytest.raises(Booting):
            start(ready)
    finally:
        account.on_run = lambda instance, address, params: None
    assert len(lost) == 1
    assert len(instances) == 4
    assert left() == []


@pytest.mark.parametrize("number", [1, 11], ids=["DescribeSubnets", "RunInstances"])
def test_throttling_is_waited_out(account: Account, ready: str, left: Left, number: int) -> None:
    throttled = []

    def throttle(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.number in (number, number + 1):
            throttled.append(call.action)
            return refusal("RequestLimitExceeded", "Request limit exceeded.", "503 Unavailable")
        return carry_out()

    account.fault = throttle
    with pytest.raises(Booting):
        start(ready)
    assert throttled == [LAUNCH[number - 1]] * 2
    assert left() == []


def _moments() -> list[tuple[int, str]]:
    """Return each call, and the moments at it that make a difference."""
    found = []
    for number, action in enumerate(WHOLE_LIFE, start=1):
        found.append((number, "before"))
        if not action.startswith(READS):
            found.append((number, "after"))
    return found


@pytest.mark.parametrize(
    ("number", "moment"),
    _moments(),
    ids=[f"{number}-{moment}-{WHOLE_LIFE[number - 1]}" for number, moment in _moments()],
)
def test_a_kernel_killed_at_any_call_leaves_nothing_after_gc(
    account: Account, ready: str, left: Left, number: int, moment: str
) -> None:
    forks = forks_with("tests.providers.aws.stand_in.warm")
    kernel = forks.Process(target=start_and_fail, args=(ready, dict(os.environ)))

    def kill(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.number == number and kernel.pid:
            if moment == "after":
                carry_out()
            os.kill(kernel.pid, signal.SIGKILL)
            raise CutConnection
        return carry_out()

    account.fault = kill
    kernel.start()
    kernel.join()
    assert kernel.exitcode == -signal.SIGKILL
    account.fault = None
    assert registry.find("train") is not None, "what may be there is not forgotten"
    for rental in cloud_resources.find()[0]:
        assert rental.is_orphaned
        rental.remove()
    assert left() == []
    assert registry.find("train") is None
    assert _keys() == []


def test_what_another_registry_started_is_left_alone(
    account: Account, ready: str, left: Left, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "other"))

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances":
            return refusal("InternalError", "it does not work", "400 Bad Request")
        return carry_out()

    account.fault = refuse
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


def test_gc_asks_as_the_profile_that_started(
    account: Account,
    subnet: str,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    # Where nobody has asked with other credentials, which may see the same.
    monkeypatch.setenv("JUPYTER_SKY_HOME", str(tmp_path / "home"))
    config = tmp_path / "config"
    config.write_text(
        "[profile work]\naws_access_key_id = worker\naws_secret_access_key = secret\n"
    )
    monkeypatch.setenv("AWS_CONFIG_FILE", str(config))

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances":
            return refusal("InternalError", "it does not work", "400 Bad Request")
        return carry_out()

    account.fault = refuse
    account.calls.clear()
    with pytest.raises(SkyError, match="something may still be there"):
        start(subnet, profile="work")
    assert {call.who for call in account.calls} == {"worker"}
    account.fault = None
    account.calls.clear()
    [rental], _ = cloud_resources.find()
    assert str(rental).endswith("in us-east-1 as work")
    config.write_text("")
    found, [sentence] = cloud_resources.find()
    assert "what is rented in us-east-1 as work cannot be listed: The config profile" in sentence
    assert not [each for each in found if each.resources.what]
    config.write_text(
        "[profile work]\naws_access_key_id = worker\naws_secret_access_key = secret\n"
    )
    rental.remove()
    assert {call.who for call in account.calls} == {"worker"}
    assert left() == []


def _keys() -> list[Path]:
    return [*(home() / "aws" / "keys").glob("*")]
