"""Several places where the nodes of a pool could come from."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api import pools_up
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import UsageError
from jupyter_sky.providers.choice import Candidate, in_order
from jupyter_sky.providers.spec import ClusterSpec


@dataclass(frozen=True)
class Rented:
    """A provider with prices."""

    prices: tuple[float | None, float | None]  # on demand, spot
    spot: bool = False
    spot_or_on_demand: bool = False
    max_price: float | None = None
    name = "rented"
    default_nodes = 1

    def price_of(self, spec: ClusterSpec) -> float | None:
        price = self.prices[self.spot]
        if price is not None and self.max_price is not None and price > self.max_price:
            raise UsageError("nothing costs so little.")
        return price and price * spec.nodes


def order(*specs: sky.Spec, selection: Any = "cheapest") -> list[Candidate]:
    common = ClusterSpec(name="test", memory="4+")
    candidates = [each for spec in specs for each in spec.candidates(common)]
    return [each for each, _ in in_order(candidates, selection)[0]]


def rented(usual: float | None, spot: float | None = None, **options: Any) -> sky.Spec:
    provider: Any = Rented((usual, spot))
    return sky.Spec(provider, **options)


def test_the_cheapest_is_first_and_what_has_no_price_last() -> None:
    found = order(rented(None), rented(3.0), rented(1.0, nodes=2), sky.Spec(sky.Local()))
    assert [each.name for each in found] == ["local", "rented", "rented", "rented"]
    assert [each.spec.nodes for each in found] == [1, 2, 1, 1]
    assert {each.spec.memory for each in found} == {"4+"}
    given = order(rented(3.0), sky.Spec(sky.Local()), selection="first")
    assert [each.name for each in given] == ["rented", "local"]


@pytest.mark.parametrize(("nodes", "expected"), [(None, [3, 1]), (2, [2, 2]), (1, [1, 1])])
def test_a_pool_has_as_many_nodes_as_it_names(nodes: int | None, expected: list[int]) -> None:
    specs = sky.Spec(sky.SSH(hosts=("a", "b", "c"))), sky.Spec(sky.Local())
    pool = sky.ComputePool(*specs, nodes=nodes)
    assert [each.spec.nodes for each in pool._candidates] == expected


def test_spot_if_available_stands_for_both() -> None:
    both = rented(3.0, 1.0, allocation="spot-if-available")
    assert [each.name for each in order(both)] == ["rented spot", "rented"]
    assert [each.name for each in order(rented(3.0, 1.0, allocation="spot"))] == ["rented spot"]
    assert [each.name for each in order(rented(3.0, 1.0, allocation="on-demand"))] == ["rented"]


def test_what_costs_too_much_is_left_out() -> None:
    both = rented(3.0, 1.0, allocation="spot-if-available", max_hourly_cost=2.0)
    assert [each.name for each in order(both)] == ["rented spot"]
    with pytest.raises(UsageError, match=r"none of these has .*rented: nothing costs so little"):
        order(rented(3.0, max_hourly_cost=2.0))


@pytest.mark.parametrize("options", [{"max_hourly_cost": 5}, {"allocation": "spot-if-available"}])
def test_hosts_that_cost_nothing_are_one_place(options: dict[str, Any]) -> None:
    [place] = order(sky.Spec(sky.SSH("gpu1"), **options))
    assert place.provider == sky.SSH("gpu1")


@pytest.mark.parametrize(
    ("allocation", "spot"),
    [("on-demand", [False]), ("spot", [True]), ("spot-if-available", [True, False])],
)
def test_an_allocation_replaces_that_of_the_provider(allocation: Any, spot: list[bool]) -> None:
    places = sky.Spec(sky.AWS(spot_or_on_demand=True), allocation=allocation)
    providers: list[Any] = [each.provider for each in places.candidates(ClusterSpec(name="test"))]
    assert [each.spot for each in providers] == spot
    assert not any(each.spot_or_on_demand for each in providers)


def test_arguments_are_checked() -> None:
    with pytest.raises(UsageError, match="local has no spot machines"):
        sky.Spec(sky.Local(), allocation="spot")
    with pytest.raises(UsageError, match="allocation='sometimes'"):
        sky.Spec(sky.Local(), allocation="sometimes")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="selection='best'"):
        order(sky.Spec(sky.Local()), selection="best")
    with pytest.raises(UsageError, match=r"'local' is no provider: write sky.Spec\(sky.Local"):
        sky.Spec("local")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="selection='best'"):
        sky.ComputePool(sky.Spec(sky.Local()), selection="best")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="is no sky.Spec: write sky.ComputePool"):
        sky.ComputePool(sky.Local(), nodes=2)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"is not a provider: write provider=sky\.Slurm\(\)"):
        sky.ComputePool(provider=sky.Slurm)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match='accelerator=4 is not one: .* accelerator="L4:4"'):
        sky.ComputePool(accelerator=4)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="worker=4: write worker=sky.Worker"):
        sky.ComputePool(worker=4)  # type: ignore[arg-type]
    assert "1 node, not up" in repr(sky.ComputePool())
    with pytest.raises(UsageError, match="not both"):
        sky.ComputePool(sky.Spec(sky.Local()), provider=sky.Local())


def test_the_next_place_is_tried_where_one_has_no_machines(home: Any) -> None:
    nowhere = sky.Spec(sky.SSH("127.0.0.1:1"), nodes=1)
    with (
        pytest.warns(UserWarning, match="is on local, because of ssh: "),
        sky.ComputePool(nowhere, sky.Spec(sky.Local()), selection="first") as pool,
    ):
        assert pool.provider == sky.Local()
        assert pool.map(abs, [-1]) == [1]
    with (
        pytest.raises(sky.SkyError, match=r"no nodes at any of 2 places: ssh: .*[^.]; ssh: .*\.$"),
        sky.ComputePool(nowhere, nowhere),
    ):
        pass


def test_what_was_started_is_ended_where_warnings_are_errors(home: Any) -> None:
    """As with `python -W error`, and in many a project's tests."""
    nowhere = sky.Spec(sky.SSH("127.0.0.1:1"), nodes=1)
    pool = sky.ComputePool(nowhere, sky.Spec(sky.Local()), selection="first", name="warned")
    with (
        warnings.catch_warnings(action="error"),
        pytest.raises(UserWarning, match="warned is on local"),
    ):
        pool.__enter__()
    assert not [row for row in registry.rows() if row.name == "warned"]


def test_a_pool_is_ended_where_its_display_fails() -> None:
    class Failing:
        def connected(self, cluster: Cluster, is_new: bool) -> None:
            raise OSError("the display is gone")

        def disconnected(self, cluster: Cluster) -> None:
            raise OSError("the display is gone")

    observer = Failing()
    pools_up.observe(observer)
    try:
        with pytest.raises(OSError, match="the display is gone"):
            sky.ComputePool(name="unseen").__enter__()
    finally:
        pools_up.leave(observer)
    assert not [row for row in registry.rows() if row.name == "unseen"]
