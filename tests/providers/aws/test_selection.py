"""Which machines are offered for what the user asks for."""

from __future__ import annotations

from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.accelerators import parse
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import Declined, UsageError
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.market.instance_types import catalog
from jupyter_sky.providers.aws.market.offers import find_offers, offers_table
from jupyter_sky.providers.aws.market.prices import on_demand
from jupyter_sky.providers.aws.market.selection import InstanceRequirements, select
from jupyter_sky.providers.choice import Candidate, in_order
from jupyter_sky.providers.local import Local
from jupyter_sky.providers.spec import ClusterSpec
from tests.providers.aws.stand_in.account import Account


def names(clients: Clients, **wish: Any) -> list[str]:
    if "gpu" in wish:
        wish["accelerator"] = parse(wish.pop("gpu"))
    return [offer.type.name for offer in find_offers(clients, InstanceRequirements(**wish))]


@pytest.mark.parametrize(
    ("gpu", "found"),
    [
        ("a100", ["p4d.24xlarge", "p4de.24xlarge"]),
        ("A100:8", ["p4d.24xlarge", "p4de.24xlarge"]),
        ("A100-80GB", ["p4de.24xlarge"]),
        ("a100-80gb:8", ["p4de.24xlarge"]),
        ("L4:4", ["g6.12xlarge", "g6.24xlarge"]),
        ("V100", ["p3dn.24xlarge"]),
        ("H100:8", ["p5.48xlarge"]),
    ],
)
def test_gpus(clients: Clients, gpu: str, found: list[str]) -> None:
    assert names(clients, gpu=gpu) == found


def test_a_t4_is_no_t4g_and_an_l4_no_l40s(clients: Clients) -> None:
    assert all(name.startswith("g4dn.") for name in names(clients, gpu="T4"))
    assert all(name.startswith(("g6.", "gr6.")) for name in names(clients, gpu="L4"))


def test_processors_and_memory(clients: Clients) -> None:
    known = catalog(clients).types
    some = [known[name] for name in names(clients, cpus="8+", memory="64+")]
    assert all(each.cpus >= 8 and each.memory >= 64 and each.gpu is None for each in some)
    exact = [known[name] for name in names(clients, cpus="8", memory="32")]
    assert exact
    assert all((each.cpus, each.memory) == (8, 32) for each in exact)
    assert all(known[name].cpus >= 32 for name in names(clients, gpu="T4", cpus="32+"))


def test_the_cheapest_comes_first(clients: Clients) -> None:
    prices = [offer.price for offer in find_offers(clients, InstanceRequirements(cpus="4+"))]
    assert len(prices) > 100
    assert prices == sorted(prices)


def test_a_cluster_has_the_price_of_the_cheapest_that_fits(clients: Clients) -> None:
    [first, *_] = find_offers(clients, InstanceRequirements(accelerator=parse("L4")))
    spec = ClusterSpec(name="test", nodes=3, accelerator=parse("L4"))
    assert first.price
    # With a disk of 100 GB, and a public address.
    rest = 100 * 0.08 / 730 + 0.005
    assert AWS(region="us-east-1").price_of(spec) == pytest.approx(3 * (first.price + rest))
    private = AWS(region="us-east-1", addresses="private", disk=200)
    assert private.price_of(spec) == pytest.approx(3 * (first.price + 200 * 0.08 / 730))
    places = [Candidate(AWS(region="us-east-1"), spec), Candidate(Local(), spec)]
    order = [each.provider.name for each, _ in in_order(places, "cheapest")[0]]
    assert order == ["local", "aws"]


def test_spot_is_cheapest_where_it_is(clients: Clients) -> None:
    usual, _ = on_demand(clients)
    wish = InstanceRequirements(accelerator=parse("L4"), spot=True)
    spot = {("g6.xlarge", "us-east-1a"): 0.9, ("g6.xlarge", "us-east-1b"): 0.4}
    first = select(wish, catalog(clients), usual, spot)[0]
    assert (first.type.name, first.price) == ("g6.xlarge", 0.4)
    assert list(first.prices)[:2] == ["us-east-1b", "us-east-1a"]


@pytest.mark.parametrize(
    ("wish", "sentence"),
    [
        ({"gpu": "Trainium"}, "Trainium does not run CUDA"),
        ({"gpu": "A100:16"}, "the largest has 8, so type `--gpu A100:8` and take more nodes."),
        ({"gpu": "GH200"}, "AWS has no GH200 in us-east-1: did you mean H200 or"),
        ({"gpu": "GTX1080Ti"}, "AWS has no GTX1080Ti in us-east-1: choose from A100,"),
        (
            {"gpu": "L4", "zone": "us-east-1e"},
            "what fits is not offered in us-east-1e: choose us-ea",
        ),
        ({"gpu": "L4", "zone": "us-east-9"}, "us-east-1 has no zone us-east-9: did you mean us-e"),
        ({"instance_type": "g6.xlage"}, "there is no instance type g6.xlage in us-east-1: did y"),
        ({"instance_type": "trn1.32xlarge"}, "Trainium does not run CUDA"),
        ({"cpus": "7"}, 'no instance type in us-east-1 has --cpus 7: a number with + ("8+")'),
        ({"gpu": "T4", "cpus": "7"}, "has --cpus 7: choose from 4 CPUs with 16 GB, 8 CPUs with"),
        (
            {"gpu": "A100", "nodes": 4, "max_price": 50.0},
            "the cheapest that fits is p4d.24xlarge, and 4 of them cost $83.20 an hour: raise",
        ),
    ],
)
def test_what_does_not_exist(clients: Clients, wish: dict[str, Any], sentence: str) -> None:
    with pytest.raises(UsageError) as caught:
        names(clients, **wish)
    assert sentence in str(caught.value)


def test_offers_are_a_table(clients: Clients, account: Account) -> None:
    text = offers_table(clients, InstanceRequirements(2, parse("a100")))
    head, first, second, last = text.splitlines()
    assert head.split() == ["type", "GPUs", "CPUs", "memory", "on", "demand", "spot", "zones"]
    assert first.startswith("p4d.24xlarge   8 × A100       96    1152 GB  $41.60")
    assert second.startswith("p4de.24xlarge")
    assert "dollars an hour for 2 nodes" in last
    account.calls.clear()
    offers_table(clients, InstanceRequirements(2, parse("T4")))
    assert account.actions == ["DescribeSpotPriceHistory"], "the rest is known for a while"


def test_quotas_have_the_names_that_aws_gives_them(clients: Clients) -> None:
    types = catalog(clients).types
    assert types["p4d.24xlarge"].quota(False) == "Running On-Demand P instances"
    assert types["p5.48xlarge"].quota(True) == "All P5 Spot Instance Requests"
    assert types["g6.xlarge"].quota(False) == "Running On-Demand G and VT instances"
    assert types["g6.xlarge"].quota(True) == "All G and VT Spot Instance Requests"
    assert types["m5.xlarge"].quota(False).startswith("Running On-Demand Standard (A, C,")
    assert types["m5.xlarge"].quota(True).startswith("All Standard (A, C, D,")


def test_who_says_no_to_a_price_is_given_no_other_nodes(
    subnet: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda text: "n")
    dear = sky.Spec(AWS(subnet=subnet), nodes=2, accelerator="A100")
    pool = sky.ComputePool(dear, sky.Spec(Local()), selection="first", plugins=[], name="asked")
    with pytest.raises(Declined, match="nothing was started"):
        pool.__enter__()
    assert registry.find("asked") is None
