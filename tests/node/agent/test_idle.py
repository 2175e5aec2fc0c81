"""When a node ends by itself, whatever other nodes answer."""

from __future__ import annotations

import math
from typing import Any

import pytest

from jupyter_sky.node.agent.idle import IdleTimes


def test_a_newer_agent_may_say_more() -> None:
    said = {"unused": 1.5, "idle": 2, "unattended": 3, "reason": "newer"}
    assert IdleTimes.from_message(said) == IdleTimes(1.5, 2.0, 3.0)


NO_TIMES = ("1", math.nan, math.inf, -1.0, None, [])


@pytest.mark.parametrize(
    "said",
    [{}, {"unused": 1.0, "idle": 1.0}]
    + [{"unused": value, "idle": 1.0, "unattended": 1.0} for value in NO_TIMES],
)
def test_what_is_no_time_counts_as_no_answer(said: dict[str, Any]) -> None:
    assert IdleTimes.from_message(said) is None
