"""What goes wrong at AWS on purpose; see `Account.fault`."""

from __future__ import annotations

import re
from collections.abc import Callable

from tests.providers.aws.stand_in.account import Answer, Call, Fault, refusal


def denied(call: Call) -> Answer:
    """Return how AWS says no to who is not allowed to do something."""
    service = {
        "GetParameter": "ssm",
        "GetProducts": "pricing",
        "ListServiceQuotas": "servicequotas",
    }.get(call.action, "ec2")
    text = f"You are not authorized to perform: {service}:{call.action}"
    return refusal("UnauthorizedOperation", text, "403 Forbidden", service != "ec2")


def denying(*actions: str) -> Fault:
    """Have AWS deny these actions, for ever."""
    return lambda call, carry_out: denied(call) if call.action in actions else carry_out()


def failing(action: str) -> Fault:
    """Have AWS fail to carry out an action, for ever."""

    def fail(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.action == action:
            return refusal("InternalError", "it does not work", "400 Bad Request")
        return carry_out()

    return fail


def without_spot_price(zone: str) -> Fault:
    """Have AWS tell what spot costs in all zones but one."""

    def hide(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        answer = carry_out()
        if call.action == "DescribeSpotPriceHistory":
            there = f"<availabilityZone>{zone}</availabilityZone>".encode()
            item = rb"<item>(?:(?!</item>).)*" + there + rb".*?</item>"
            answer.body = re.sub(item, b"", answer.body, flags=re.DOTALL)
        return answer

    return hide
