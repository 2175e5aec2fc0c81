"""What a cluster costs."""

from __future__ import annotations

import pytest

from jupyter_sky.cluster.cost_meter import CostMeter, CostRate, Unit, rate_of, total_price


@pytest.mark.parametrize(
    ("prices", "total"),
    [
        ([], None),
        ([None, None], None),
        ([1.5, None, 2], 3.5),
        ([0.0], 0.0),
        (["dear", True, float("nan"), 2.0], 2.0),
    ],
)
def test_prices_are_added_where_there_are_any(prices: list[object], total: float | None) -> None:
    assert total_price(prices) == total


def test_cost_goes_on_from_where_the_price_has_changed() -> None:
    meter = CostMeter(spent=1.0, since=1000.0)
    assert meter.cost(3.6, now=2000.0) == pytest.approx(2.0)
    assert meter.cost(3.6, now=900.0) == 1.0  # a clock that was set back
    assert meter.cost(None, now=2000.0) is None


def test_what_has_ended_costs_no_more() -> None:
    meter = CostMeter(1.0, 1000.0).at_end(3600.0, 1002.0)
    assert (meter.cost(3600.0, 1002.0), meter.cost(3600.0, 9999.0)) == (3.0, 3.0)
    free = CostMeter(0.0, 1000.0)
    assert free.at_end(None, 1002.0) == free


def test_what_has_no_price_may_cost_hours() -> None:
    gpus = [{"accelerators": 4, "price": None}, {"accelerators": 2, "price": None}]
    assert rate_of(gpus, counts_hours=True) == CostRate(6, Unit.GPU_HOURS)
    assert rate_of(gpus, counts_hours=False) == CostRate(None, Unit.DOLLARS)
    # Nobody else waits for a GPU of nodes that have none; a row may be damaged.
    assert rate_of([{}, {"accelerators": "many"}], counts_hours=True) == CostRate(
        2, Unit.NODE_HOURS
    )
    assert rate_of([], counts_hours=True).amount is None
    assert rate_of([{"price": 2.0}], counts_hours=False).price == 2.0
    assert rate_of(gpus, counts_hours=True).price is None
