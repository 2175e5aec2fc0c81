"""What disks cost, which go on costing when instances are stopped."""

from __future__ import annotations

import json
from collections.abc import Sequence

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.local_store import cached

HOURS_A_MONTH = 730.0

KIND = "gp3"
"""The kind of the disks of our instances."""

_DAY = 86400.0


def price(clients: Clients, instances: Sequence[str]) -> float | None:
    """Return the dollars an hour of the disks of instances; ``None`` if that is not known.

    What is paid for speed beyond that of a usual disk is not in it.
    """
    attached = [{"Name": "attachment.instance-id", "Values": list(instances)}]
    total = 0.0
    try:
        with explain_errors():
            pages = clients.ec2.get_paginator("describe_volumes").paginate(Filters=attached)
            disks = [*pages.search("Volumes[]")]
        for each in disks:
            total += each["Size"] * _of_kind(clients, each["VolumeType"]) / HOURS_A_MONTH
    except (AWSError, ValueError, KeyError, TypeError):
        return None
    return total if disks else None


def usual_price(clients: Clients) -> float | None:
    """Return the dollars an hour of a gigabyte of our own kind; ``None`` if that is not known."""
    try:
        return _of_kind(clients, KIND) / HOURS_A_MONTH
    except (AWSError, ValueError, KeyError, TypeError):
        return None


def _of_kind(clients: Clients, kind: str) -> float:
    """Return the dollars a month of a gigabyte of a kind of disk."""
    found, _ = cached(f"storage-{clients.region}-{kind}", _DAY, lambda: _ask(clients, kind))
    return float(found)


def _ask(clients: Clients, kind: str) -> float:
    wanted = {"regionCode": clients.region, "productFamily": "Storage", "volumeApiName": kind}
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    with explain_errors():
        answer = clients.pricing.get_products(ServiceCode="AmazonEC2", Filters=filters)
    for text in answer["PriceList"]:
        for term in json.loads(text)["terms"]["OnDemand"].values():
            for dimension in term["priceDimensions"].values():
                if dimension["unit"] == "GB-Mo":
                    return float(dimension["pricePerUnit"]["USD"])
    raise ValueError(f"no price of {kind}")
