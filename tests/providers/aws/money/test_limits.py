"""What may cost how much: the price of spot, prices that are not known, and clusters left alone."""

from __future__ import annotations

import asyncio
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from jupyter_sky.api.display.progress_line import _TerminalDisplay
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import AWS, local_store
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.spec import ClusterSpec
from jupyter_sky.transport import event_loop
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.faults import without_spot_price
from tests.providers.aws.starting import SPEC, Booting, provider

WHERE = "in us-east-1, account 123456789012"

Left = Callable[[], list[str]]


def launched(
    account: Account, subnet: str, former_price: float | None = None, **options: Any
) -> tuple[list[Call], list[str]]:
    """Start a cluster up to where its machines boot; return what was asked for, and said."""
    said: list[str] = []

    def say(text: Any) -> None:
        said.append(str(text))
        if str(text).endswith("to boot"):
            raise Booting(str(text))

    wanted = AWS(subnet=subnet, addresses="private", user="root", **options)
    account.calls.clear()
    with pytest.raises(Booting):
        spec = replace(SPEC, former_price=former_price)
        Cluster.start(spec, wanted, RuntimeEnv(None), say)
    return [call for call in account.calls if call.action == "RunInstances"], said


PRICE = 20.8 / 3  # of a p4d.24xlarge as spot, an hour
DISK = 100 * 0.08 / 730  # of its disk of 100 GB


@pytest.mark.parametrize(
    ("options", "most", "lifetime"),
    [
        ({"max_price": 40.0}, 10.0 - DISK, None),
        ({"max_price": 30.0, "max_cost": 100.0}, 7.5 - DISK, 12000),
        ({"max_cost": 100.0, "ask_above": 1000.0}, 1.2 * PRICE, 10803),
        # AWS takes nothing that is many times its price.
        ({"ask_above": 1000.0}, 4 * PRICE, None),
        ({"ask_above": 32.0}, 1.2 * PRICE, None),
    ],
)
def test_spot_carries_what_was_agreed_to(
    account: Account,
    subnet: str,
    left: Left,
    options: dict[str, float],
    most: float,
    lifetime: int | None,
) -> None:
    import base64

    [asked], _ = launched(account, subnet, spot=True, **options)
    price = asked.params["InstanceMarketOptions.SpotOptions.MaxPrice"]
    assert float(price) == pytest.approx(most, rel=1e-3)
    told = base64.b64decode(asked.params["UserData"]).decode()
    # It is the money at the price that spot may rise to.
    assert re.findall(r" (\d+) 1<>", told) == ([str(lifetime)] if lifetime else [])
    assert left() == []


def test_spot_is_limited_where_its_price_is_not_known(
    account: Account, subnet: str, left: Left
) -> None:
    """Without a limit, AWS would take what the same costs on demand, which nobody was asked for."""
    account.fault = without_spot_price("us-east-1a")
    [asked], said = launched(account, subnet, spot=True, ask_above=32.0)
    assert f"4 × p4d.24xlarge spot for $27.78 an hour {WHERE}" in "\n".join(said)
    price = asked.params["InstanceMarketOptions.SpotOptions.MaxPrice"]
    assert float(price) == pytest.approx(1.2 * PRICE, rel=1e-3)
    assert left() == []


def _rises(is_dearer: Callable[[bytes], bool]) -> Callable[[Call, Callable[[], Answer]], Answer]:
    """Return a fault by which spot costs three times as much in some zones."""

    def dearer(item: re.Match[bytes]) -> bytes:
        zone = re.search(rb"<availabilityZone>([^<]+)", item[0])
        if zone is None or not is_dearer(zone[1]):
            return item[0]
        return re.sub(
            rb"(?<=<spotPrice>)[^<]+", lambda price: b"%f" % (3 * float(price[0])), item[0]
        )

    def rise(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeSpotPriceHistory":
            answer.body = re.sub(rb"<item>.*?</item>", dearer, answer.body, flags=re.DOTALL)
        return answer

    return rise


def test_a_lost_cluster_is_started_where_it_costs_what_was_agreed_to(
    account: Account, subnet: str, left: Left
) -> None:
    account.fault = _rises(lambda zone: zone != b"us-east-1a")
    # It is more than what asks nobody, and there is nobody to ask.
    _, said = launched(account, subnet, former_price=4 * PRICE, spot=True)
    assert f"4 × p4d.24xlarge spot for $27.78 an hour {WHERE}" in "\n".join(said)
    assert left() == []


def test_a_lost_cluster_is_asked_for_where_its_zone_alone_has_become_dearer(
    account: Account, subnet: str, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The user's subnets are in no other zone, however cheap it is there."""
    account.fault = _rises(lambda zone: zone == b"us-east-1a")
    asked: list[str] = []

    def refuse(question: str) -> str:
        asked.append(question)
        return "n"

    monkeypatch.setattr("builtins.input", refuse)
    spec = replace(SPEC, former_price=4 * PRICE)
    wanted = AWS(subnet=subnet, addresses="private", user="root", spot=True)
    with pytest.raises(SkyError, match="nothing was started"):
        Cluster.start(spec, wanted, RuntimeEnv(None))
    assert asked == [f"Start 4 × p4d.24xlarge spot for $83.24 an hour {WHERE}? [y/N] "]
    assert left() == []


def test_stop_at_the_question_is_a_stop(
    account: Account, subnet: str, left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(question: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("builtins.input", stop)
    with pytest.raises(KeyboardInterrupt):
        Cluster.start(SPEC, AWS(subnet=subnet, ask_above=1.0), RuntimeEnv(None))
    assert registry.find(SPEC.name) is None
    assert left() == []
    # Other clusters of this process go on.
    assert event_loop.wait(asyncio.sleep(0, "goes on")) == "goes on"


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("InsufficientInstanceCapacity", "AWS has no"),
        (
            "AuthFailure.ServiceLinkedRoleCreationNotPermitted",
            "the account has used no spot instances yet",
        ),
    ],
)
def test_on_demand_in_place_of_spot(
    account: Account, subnet: str, left: Left, code: str, why: str
) -> None:
    def no_spot(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        is_spot = call.params.get("InstanceMarketOptions.MarketType") == "spot"
        if call.action == "RunInstances" and is_spot:
            return refusal(code, "There is no Spot capacity")
        return carry_out()

    account.fault = no_spot
    asked, said = launched(account, subnet, spot_or_on_demand=True, ask_above=1000.0)
    markets = [call.params.get("InstanceMarketOptions.MarketType") for call in asked]
    assert markets == ["spot", None]
    assert any(text.startswith(f"there is no spot ({why}") for text in said)
    assert any(
        text.startswith(f"4 × p4d.24xlarge spot for $27.78 an hour {WHERE}") for text in said
    )
    assert any(text.startswith(f"4 × p4d.24xlarge for $83.24 an hour {WHERE}") for text in said)
    assert left() == []


def no_prices(answer: Answer) -> Callable[[Call, Callable[[], Answer]], Answer]:
    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        return answer if call.action == "GetProducts" else carry_out()

    return refuse


@pytest.mark.parametrize(
    "answer",
    [
        Answer(b"<!doctype html>\n<h1>Internal Server Error</h1>", "500 Internal Server Error"),
        refusal("UnrecognizedClientException", "x", "400 Bad Request", json_spoken=True),
        refusal("AccessDeniedException", "x", "400 Bad Request", json_spoken=True),
    ],
    ids=["html", "elsewhere", "denied"],
)
def test_prices_that_cannot_be_had_take_no_offer_away(
    account: Account,
    subnet: str,
    clients: Clients,
    left: Left,
    answer: Answer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (local_store.folder() / "prices-us-east-1.json").unlink(missing_ok=True)
    account.fault = no_prices(answer)
    wanted = provider(subnet)
    assert "unknown" in wanted.offers_table(SPEC)
    # A limit an hour is no reason to refuse: the user is asked.
    questions: list[str] = []
    monkeypatch.setattr("builtins.input", lambda text: questions.append(text) or "y")
    _, said = launched(account, subnet, max_price=100.0)
    assert questions == [f"Start 4 × p4d.24xlarge at an unknown price {WHERE}? [y/N] "]
    assert not any("html" in text for text in said)
    monkeypatch.setattr("builtins.input", lambda text: "n")
    with pytest.raises(UsageError) as caught:
        Cluster.start(SPEC, wanted, RuntimeEnv(None))
    assert "--max-price" not in str(caught.value), "which would not help"
    assert "'ask_above': float('inf')" in str(caught.value)
    with pytest.raises(UsageError, match="so --max-cost cannot be kept: leave it out"):
        Cluster.start(SPEC, provider(subnet, max_cost=5), RuntimeEnv(None))
    assert left() == []


def test_a_deny_of_the_organization_is_named(account: Account, subnet: str) -> None:
    text = (
        "You are not authorized to perform this operation. User: arn:aws:iam::1:user/anna is not "
        "authorized to perform: ec2:RunInstances on resource: arn:aws:ec2:us-east-1:1:instance/* "
        "with an explicit deny in a service control policy"
    )

    def refuse(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == "RunInstances":
            return refusal("UnauthorizedOperation", text, "403 Forbidden")
        return carry_out()

    account.fault = refuse
    sentence = "a service control policy of your organization denies ec2:RunInstances: ask who"
    with pytest.raises(SkyError, match=sentence):
        Cluster.start(SPEC, provider(subnet), RuntimeEnv(None))


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"disk": "200"}, "disk='200': type a whole number, like disk=100"),
        ({"ask_above": "5"}, "ask_above='5' is no amount: type a number, like ask_above=20"),
        ({"spot": "no"}, "spot='no': type spot=True or spot=False"),
        ({"zone": 1}, "zone=1 is no text: put it in quotes"),
        ({"max_price": True}, "max_price=True is no amount"),
    ],
)
def test_a_setting_of_another_type(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        AWS(**settings)


def test_what_costs_money_ends_when_it_is_idle(account: Account, subnet: str, left: Left) -> None:
    recorded: list[Any] = []

    def look(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        row = registry.find(SPEC.name)
        recorded.append(row.spec["idle_timeout"] if row else None)
        return carry_out()

    account.fault = look
    _, said = launched(account, subnet, max_price=100.0)
    price = f"4 × p4d.24xlarge for $83.24 an hour {WHERE}, ends after 1 h 00 min without a run"
    assert price in said
    assert recorded[-1] == 3600.0
    assert ClusterSpec("x").idle_timeout is None
    _, said = launched(account, subnet, max_price=100.0, idle_timeout=None)
    assert f"4 × p4d.24xlarge for $83.24 an hour {WHERE}" in said
    assert left() == []


def test_a_terminal_shows_a_line_once(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    display = _TerminalDisplay()
    for _ in range(267):
        display.show(["waiting for 4 instances to boot"], "waiting for 4 instances to boot")
    assert capsys.readouterr().err == "waiting for 4 instances to boot\n"
