"""What accounts of companies have and moto does not: quotas, and capacity that is reserved.

Answers of our own, each as AWS documents it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

QUOTAS = {
    "Running On-Demand P instances": 192.0,
    "All P4, P3 and P2 Spot Instance Requests": 1000.0,
    "Running On-Demand Standard (A, C, D, H, I, M, R, T, Z) instances": 256.0,
}
"""Processors that the account may have."""


@dataclass
class Company:
    """The part of an account that a company has arranged.

    Attributes
    ----------
    reservations
        What is reserved, by its id: the elements of AWS's description.
    """

    reservations: dict[str, dict[str, str]] = field(default_factory=dict, kw_only=True)

    def _on_ListServiceQuotas(self, environ: Any, params: dict[str, str]) -> Any:
        from tests.providers.aws.stand_in.account import Answer

        found = [
            {"ServiceCode": "ec2", "QuotaName": name, "Value": value}
            for name, value in QUOTAS.items()
        ]
        body = json.dumps({"Quotas": found if params.get("ServiceCode") == "ec2" else []})
        return Answer(body.encode(), kind="application/x-amz-json-1.1")

    def _on_DescribeCapacityReservations(self, environ: Any, params: dict[str, str]) -> Any:
        from tests.providers.aws.stand_in.account import Answer, refusal

        name = params["CapacityReservationId.1"]
        if name not in self.reservations:
            text = f"The capacity reservation '{name}' does not exist"
            return refusal("InvalidCapacityReservationId.NotFound", text)
        said = {"capacityReservationId": name, **self.reservations[name]}
        item = "".join(f"<{key}>{value}</{key}>" for key, value in said.items())
        return Answer(
            '<DescribeCapacityReservationsResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
            f"<capacityReservationSet><item>{item}</item></capacityReservationSet>"
            "</DescribeCapacityReservationsResponse>".encode()
        )
