"""The prices of the stand-in: moto has no price list, and one price for all spot instances."""

from __future__ import annotations

import json
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
