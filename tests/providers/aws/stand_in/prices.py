"""The prices of the stand-in: moto has no price list, and one price for all spot instances."""

from __future__ import annotations

import json
from collections.abc import Collection
from datetime import UTC, datetime
from functools import cache


@cache
def prices() -> dict[str, float]:
    """Return what an hour of each type costs: by its processors and GPUs."""
    from moto.ec2.models.instance_types import INSTANCE_TYPES

    found = {}
    for name, about in INSTANCE_TYPES.items():
        gpus = sum(each["Count"] for each in about.get("GpuInfo", {}).get("Gpus", ()))
        found[name] = round(0.05 * about["VCpuInfo"]["DefaultVCpus"] + 2.0 * gpus, 4)
    return found


DISK = 0.08
"""Dollars a month of a gigabyte of the usual disk."""


def disk() -> str:
    """Return its price as the price list of AWS has it."""
    dimension = {"unit": "GB-Mo", "pricePerUnit": {"USD": f"{DISK:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": {"volumeApiName": "gp3"}}, "terms": terms})


def product(name: str, price: float) -> str:
    """Return a price as the price list of AWS has it."""
    dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price:.10f}"}}
    terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
    return json.dumps({"product": {"attributes": {"instanceType": name}}, "terms": terms})


def spot_prices(region: str, types: Collection[str]) -> str:
    """Return what spot costs now, as AWS describes it; moto takes half a second for all types."""
    from moto.ec2.models.instance_types import INSTANCE_TYPE_OFFERINGS

    now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%S.000Z}"
    of_type = prices()
    items = (
        f"<item><instanceType>{name}</instanceType>"
        "<productDescription>Linux/UNIX (Amazon VPC)</productDescription>"
        f"<spotPrice>{of_type[name] / 3:.6f}</spotPrice><timestamp>{now}</timestamp>"
        f"<availabilityZone>{each['Location']}</availabilityZone></item>"
        for each in INSTANCE_TYPE_OFFERINGS["availability-zone"].get(region, ())
        if (name := each["InstanceType"]) in types
    )
    return f"<spotPriceHistorySet>{''.join(items)}</spotPriceHistorySet>"
