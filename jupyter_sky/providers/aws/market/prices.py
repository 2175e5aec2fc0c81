"""What machines cost an hour: AWS's price list, and what spot costs now."""

from __future__ import annotations

import json
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.local_store import cached

_DAY = 86400.0
_MOST_TYPES = 100  # of one question for spot prices

# Of the many prices of a type, the one of a plain Linux machine that is paid by the second.
_PLAIN_LINUX = {
    "operatingSystem": "Linux",
    "tenancy": "Shared",
    "preInstalledSw": "NA",
    "capacitystatus": "Used",
    "marketoption": "OnDemand",
}


def on_demand(clients: Clients) -> tuple[dict[str, float], float]:
    """Return the dollars an hour of every type of a region, and the age of this in seconds.

    Where the price list cannot be had, whatever the reason, it is empty.
    """
    try:
        return cached(f"prices-{clients.region}", _DAY, lambda: _ask(clients))
    except AWSError as error:
        _denied[clients.location] = "Denied" in error.code or error.code == "UnauthorizedOperation"
    except (ValueError, KeyError, TypeError):
        _denied[clients.location] = False
    return {}, 0.0


def is_denied(clients: Clients) -> bool:
    """Return whether prices are not known because the user may not see them."""
    return _denied.get(clients.location, False)


_denied: dict[str, bool] = {}


def spot(clients: Clients, types: Iterable[str]) -> dict[tuple[str, str], float]:
    """Return the dollars an hour of spot at this moment, by type and zone."""
    names = sorted(set(types))
    found: dict[tuple[str, str], tuple[datetime, float]] = {}
    for first in range(0, len(names), _MOST_TYPES):
        with explain_errors():
            pages = clients.ec2.get_paginator("describe_spot_price_history").paginate(
                InstanceTypes=names[first : first + _MOST_TYPES],
                ProductDescriptions=["Linux/UNIX", "Linux/UNIX (Amazon VPC)"],
                StartTime=datetime.now(UTC),
            )
            rows = [*pages.search("SpotPriceHistory[]")]
        for row in rows:
            key = row["InstanceType"], row["AvailabilityZone"]
            new = row["Timestamp"], float(row["SpotPrice"])
            found[key] = max(found.get(key, new), new)
    return {key: price for key, (_, price) in found.items()}


def _ask(clients: Clients) -> dict[str, float]:
    wanted = {**_PLAIN_LINUX, "regionCode": clients.region}
    filters = [
        {"Type": "TERM_MATCH", "Field": field, "Value": value} for field, value in wanted.items()
    ]
    prices: dict[str, float] = {}
    with explain_errors():
        pages = clients.pricing.get_paginator("get_products").paginate(
            ServiceCode="AmazonEC2", Filters=filters
        )
        for text in pages.search("PriceList[]"):
            product = json.loads(text)
            name = product["product"]["attributes"].get("instanceType")
            price = _hourly(product)
            if name and price:
                prices[name] = price
    return prices


def _hourly(product: dict[str, Any]) -> float | None:
    for term in product.get("terms", {}).get("OnDemand", {}).values():
        for dimension in term["priceDimensions"].values():
            if dimension["unit"] == "Hrs":
                return float(dimension["pricePerUnit"]["USD"])
    return None
