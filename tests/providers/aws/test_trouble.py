"""What is said when AWS has not enough, or does not let the user do something."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import AWS, rented, retries
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.renting.rent import rent as rent_there
from jupyter_sky.providers.spec import ClusterSpec
from tests.providers.aws.stand_in.account import Account, Answer, Call, CutConnection, refusal
from tests.providers.aws.stand_in.faults import without_spot_price
from tests.providers.aws.starting import SPEC, Booting

Left = Callable[[], list[str]]

NO_CAPACITY = "We currently do not have sufficient p4d.24xlarge capacity"
NO_QUOTA = "You have requested more vCPU capacity than your current vCPU limit of 96 allows"


def refusing(account: Account, wanted: Callable[[Call], str | None]) -> list[Call]:
    """Have instances refused; returns the list of what was asked for."""
    asked: list[Call] = []

    def decide(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action != "RunInstances":
            return carry_out()
        asked.append(call)
        code = wanted(call)
        said = NO_QUOTA if code == "VcpuLimitExceeded" else NO_CAPACITY
        return refusal(code, said) if code else carry_out()

    account.fault = decide
    return asked


def rent(**options: Any) -> None:
    """Rent four machines in the default network, and give them back."""
    provider = AWS(ssh_from="192.0.2.1/32", **{"max_price": 100, **options})
    provider.check(SPEC, [])
    rented = rent_there(Clients("us-east-1"), provider, SPEC, "0123abcd", print)
    raise Booting(f"{len(rented)} × {rented[0].type} in {rented[0].zone}")


@pytest.fixture
def given_back(clients: Clients) -> Any:
    """Gives back what a test has rented."""
    import asyncio

    yield
    asyncio.run(AWS().release_cluster("0123abcd", "us-east-1", lambda text: None))


def test_another_zone_and_another_type_are_tried(account: Account, given_back: None) -> None:
    def only_one(call: Call) -> str | None:
        kind, zone = call.params["InstanceType"], call.params["Placement.AvailabilityZone"]
        there = (kind, zone) == ("p4de.24xlarge", "us-east-1c")
        return None if there else "InsufficientInstanceCapacity"

    asked = refusing(account, only_one)
    with pytest.raises(Booting, match="4 × p4de.24xlarge in us-east-1c"):
        rent()
    tried = [(c.params["InstanceType"], c.params["Placement.AvailabilityZone"]) for c in asked]
    assert tried == [
        *(("p4d.24xlarge", f"us-east-1{zone}") for zone in "abcd"),
        ("p4de.24xlarge", "us-east-1b"),
        ("p4de.24xlarge", "us-east-1c"),
    ]
    assert all(c.params["MinCount"] == c.params["MaxCount"] == "4" for c in asked)
    assert len({c.params["ClientToken"] for c in asked}) == len(asked)


def test_another_zone_is_tried_where_aws_takes_back_some_of_those_that_it_gave(
    account: Account, clients: Clients, given_back: None
) -> None:
    """It ends none of several if it does not know one of them."""
    gone: list[str] = []
    state = "<code>48</code><name>terminated</name>"
    reason = "<code>Server.InsufficientInstanceCapacity</code><message>no more</message>"

    def take_back(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "TerminateInstances" and gone[0] in call.params.values():
            return refusal("InvalidInstanceID.NotFound", f"The ID '{gone[0]}' does not exist")
        answer = carry_out()
        if call.action == "DescribeInstances" and not gone:
            text = answer.body.decode()
            gone.extend(re.findall(r"<instanceId>(i-\w+)<", text))
            for kind, other in (("instanceState", state), ("stateReason", reason)):
                text = re.sub(f"(?<=<{kind}>).*?(?=</{kind}>)", other, text, count=1, flags=re.S)
            answer.body = text.encode()
        return answer

    account.fault = take_back
    try:
        with pytest.raises(Booting, match="4 × p4d.24xlarge in us-east-1b"):
            rent()
    finally:
        account.fault = None
    there = [{"Name": "availability-zone", "Values": ["us-east-1a"]}]
    alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
    found = clients.ec2.describe_instances(Filters=[*there, *alive])["Reservations"]
    assert [each["InstanceId"] for some in found for each in some["Instances"]] == gone[:1]
    rented.acknowledge("0123abcd", gone)  # moto ends no instance twice that has an interface


def test_a_key_that_aws_may_not_use_is_named(account: Account, given_back: None) -> None:
    """AWS begins, and says of the end no more than that the client is in error."""
    state = "<code>48</code><name>terminated</name>"
    text = "Client.InternalError: Client error on launch"
    reason = f"<code>Client.InternalError</code><message>{text}</message>"

    def end(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeInstances":
            text = answer.body.decode()
            for kind, other in (("instanceState", state), ("stateReason", reason)):
                text = re.sub(f"(?<=<{kind}>).*?(?=</{kind}>)", other, text, flags=re.S)
            answer.body = text.encode()
        return answer

    account.fault = end
    sentence = f"an instance ended while it started: {text}; it is mostly the key of its disks"
    try:
        with pytest.raises(SkyError, match=sentence):
            rent()
    finally:
        account.fault = None


def test_what_was_just_made_is_not_known_to_each_server_of_aws(
    account: Account, given_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answer to what made the group is lost, too."""
    monkeypatch.setattr(retries, "_LONGEST_PAUSE", 0.01)
    not_known = {
        "AuthorizeSecurityGroupIngress": ["InvalidGroup.NotFound"],
        "AuthorizeSecurityGroupEgress": ["InvalidGroup.NotFound"],
        "RunInstances": [
            "InvalidKeyPair.NotFound",
            "InvalidGroup.NotFound",
            "InvalidPlacementGroup.Unknown",
        ],
    }
    looks: list[Answer] = []

    def unaware(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if codes := not_known.get(call.action):
            return refusal(codes.pop(), "It does not exist")
        answer = carry_out()
        if call.action == "CreateSecurityGroup" and answer.status.startswith("200"):
            raise CutConnection
        if call.action == "DescribeSecurityGroups" and not looks:
            looks.append(answer)
            answer.body = re.sub(rb"<item>.*</item>", b"", answer.body, flags=re.S)
        return answer

    account.fault = unaware
    try:
        with pytest.raises(Booting):
            rent()
    finally:
        account.fault = None
    assert looks
    assert not any(not_known.values())


def test_no_capacity_anywhere(account: Account, given_back: None, left: Left) -> None:
    refusing(account, lambda call: "InsufficientInstanceCapacity")
    with pytest.raises(SkyError) as caught:
        rent(zone="us-east-1b")
    assert str(caught.value).splitlines() == [
        "AWS has no capacity for 4 such instances now: try later or in another --region, or ask "
        "for a higher quota at Service Quotas in the AWS console.",
        f"  p4d.24xlarge in us-east-1b: {NO_CAPACITY}",
        f"  p4de.24xlarge in us-east-1b: {NO_CAPACITY}",
    ]


def test_max_cost_keeps_to_zones_whose_price_is_known(account: Account, given_back: None) -> None:
    asked = refusing(account, lambda call: "InsufficientInstanceCapacity")
    refuse, hide = account.fault, without_spot_price("us-east-1b")
    account.fault = lambda call, carry_out: hide(call, lambda: refuse(call, carry_out))
    limits: dict[str, Any] = {"max_price": None, "ask_above": 1000.0, "max_cost": 40.0}
    with pytest.raises(SkyError, match="AWS has no capacity for 4"):
        rent(spot=True, **limits)
    zones = {call.params["Placement.AvailabilityZone"] for call in asked}
    assert zones == {"us-east-1a", "us-east-1c", "us-east-1d"}
    sentence = r"AWS gives no price for p4d\S+, so --max-cost cannot be kept: leave out --spot"
    with pytest.raises(UsageError, match=sentence):
        rent(spot=True, zone="us-east-1b", **limits)


def test_a_quota_is_named_and_not_tried_again(account: Account, given_back: None) -> None:
    asked = refusing(account, lambda call: "VcpuLimitExceeded")
    with pytest.raises(SkyError) as caught:
        rent()
    assert f"{NO_QUOTA} (the quota is `Running On-Demand P instances`)" in str(caught.value)
    assert len(asked) == 1


def test_spot_and_efa_are_asked_for(account: Account, given_back: None) -> None:
    asked = refusing(account, lambda call: None)
    with pytest.raises(Booting):
        rent(spot=True)
    params = asked[0].params
    assert params["InstanceMarketOptions.MarketType"] == "spot"
    assert params["NetworkInterface.1.InterfaceType"] == "efa"
    assert params["NetworkInterface.1.AssociatePublicIpAddress"] == "true"
    assert params["Placement.GroupName"] == "jupyter-sky-0123abcd"
    kinds = {v for k, v in params.items() if re.fullmatch(r"TagSpecification\.\d\.ResourceType", k)}
    assert kinds == {"instance", "volume", "network-interface", "spot-instances-request"}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"subnet": "subnet-nowhere"}, "there is no subnet subnet-nowhere in us-east-1"),
        ({"image_id": "ami-nowhere"}, "there is no image ami-nowhere in us-east-1 that you may"),
        ({"region": "us-esat-1"}, "AWS has no region us-esat-1: did you mean us-"),
        ({"region": "mars-1"}, "AWS has no region mars-1: choose from af-south-1, "),
        ({"instance_type": "g5g.xlarge"}, "g5g.xlarge has 1 × T4G, and --gpu asks for A100"),
    ],
)
def test_what_is_not_there(
    account: Account, given_back: None, options: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(UsageError) as caught:
        rent(**options)
    assert sentence in str(caught.value)


def test_an_account_without_a_default_network(
    account: Account, clients: Clients, given_back: None
) -> None:
    def nothing(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeSubnets":
            body = re.sub(rb"<subnetSet>.*</subnetSet>", b"<subnetSet/>", answer.body, flags=re.S)
            return Answer(body)
        return answer

    account.fault = nothing
    with pytest.raises(UsageError, match="your account has no default network in us-east-1"):
        rent()


def test_throttling_that_does_not_end(
    account: Account, given_back: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retries, "_LONGEST_PAUSE", 0.01)
    asked = refusing(account, lambda call: "RequestLimitExceeded")
    sentence = "tried several times: this account makes too many requests. Try again in some min"
    with pytest.raises(SkyError, match=sentence):
        rent()
    assert len(asked) == retries.ATTEMPTS


@pytest.mark.parametrize(
    ("code", "sentence"),
    [
        ("RequestExpired", "your session with AWS has expired: run `aws sso login`"),
        (
            "AuthFailure",
            "AWS does not accept these credentials: run .*; where that works, your account has not "
            "enabled the region",
        ),
        ("UnauthorizedOperation", r"your AWS user may not do ec2:RunInstances: ask for the policy"),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "ask who manages the account to run `aws iam create-service-linked-role "
            "--aws-service-name spot.amazonaws.com` once, or leave out --spot",
        ),
    ],
)
def test_credentials(account: Account, given_back: None, code: str, sentence: str) -> None:
    text = "You are not authorized to perform: ec2:RunInstances on resource"

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        return refusal(code, text) if call.action == "RunInstances" else carry_out()

    account.fault = refuse
    with pytest.raises(SkyError, match=sentence):
        rent()


@pytest.mark.parametrize(
    ("code", "hours", "how"), [("AuthFailure", 3, "behind"), ("RequestExpired", -7, "ahead of")]
)
def test_a_clock_that_is_wrong(
    account: Account,
    given_back: None,
    monkeypatch: pytest.MonkeyPatch,
    code: str,
    hours: int,
    how: str,
) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(hours=hours), usegmt=True)
    monkeypatch.setattr(BaseHTTPRequestHandler, "date_time_string", lambda self: date)
    refusing(account, lambda call: code)
    sentence = rf"this computer's clock is \d h \d\d min {how} that of AWS, .*: set it"
    with pytest.raises(SkyError, match=sentence):
        rent()


def test_no_credentials(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    sentence = "there are no credentials for AWS here: run `aws configure"
    with monkeypatch.context() as without, pytest.raises(SkyError, match=sentence):
        without.delenv("AWS_ACCESS_KEY_ID")
        without.delenv("AWS_SECRET_ACCESS_KEY")
        AWS(spot=True).check(ClusterSpec("train", accelerator="T4"), [])
