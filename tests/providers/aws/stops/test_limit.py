"""What a stopped cluster costs, and what is left of its limit."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from jupyter_sky.cluster.inventory import registry, stops
from jupyter_sky.cluster.inventory.stops import DiskCost
from jupyter_sky.cluster.inventory.storage.row import RegistryRow
from jupyter_sky.errors import UsageError
from jupyter_sky.notebook.commands.life.stops import disks_cost
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.renting.resume import _check_price
from tests.notebook.conftest import Notebook, notebook

__all__ = ["notebook"]

ID = "0000000d"


@pytest.fixture
def cluster() -> Iterator[None]:
    registry.record(ID, "limited", "aws", {"nodes": 1})
    registry.record_machines(ID, [{"nodes": [{"price": 2.0, "ranks": [0]}]}])
    yield
    registry.remove(ID)


def row() -> RegistryRow:
    [found] = [each for each in registry.rows() if each.id == ID]
    return found


def left(hours: float) -> float | None:
    """What is left of the limit so many hours after the last change of the price."""
    return stops.money_left(row(), row().meter.since + 3600 * hours)


def test_disks_of_stopped_machines_count(cluster: None) -> None:
    assert left(1) is None
    stops.record_stop(ID, time.time(), DiskCost(0.5, left=10.0))
    assert left(4) == pytest.approx(8)
    assert left(40) == pytest.approx(-10)
    # While the user is asked, there are disks alone yet.
    stops.record_begin(row())
    assert row().is_stopped and not row().spec["stopped"]
    assert left(2) == pytest.approx(9, abs=0.1)
    # A start that fails counts as well, and the limit stays what it was.
    stops.record_running(ID)
    assert left(2) == pytest.approx(6, abs=0.1)
    stops.record_stop(ID, time.time(), DiskCost(0.5))
    assert left(4) == pytest.approx(8, abs=0.1)
    # A new limit holds from when machines run: a start that is refused before changes nothing.
    stops.record_begin(row())
    stops.record_running(ID, money=100.0)
    assert left(0) == pytest.approx(100)


def test_disks_whose_price_is_not_known_do_not_count(cluster: None) -> None:
    stops.record_stop(ID, time.time(), DiskCost(None, left=10.0))
    assert left(1000) == pytest.approx(10)


def test_no_limit_of_before_holds_where_autostop_keeps_the_disks(cluster: None) -> None:
    registry.change(ID, {"autostop": True})
    stops.record_stop(ID, time.time(), DiskCost(0.5, left=0.0))
    assert left(4) is None  # such a one cannot be raised any more: nothing would start it again


@pytest.mark.parametrize("price", [1.022, 1.028, 0.0361, 617.2551])
def test_the_line_that_is_advised_starts_it(price: float) -> None:
    with pytest.raises(UsageError) as caught:
        _check_price(AWS(max_price=0.01), "limited", 2, price)
    [line] = re.findall(r"`(%sky start .*)`", str(caught.value))
    name, limit = line.removeprefix("%sky start ").split(" --max-price ")
    assert name == "limited"
    _check_price(AWS(max_price=float(limit)), name, 2, price)


def test_no_limit_is_set_where_autostop_keeps_the_disks(notebook: Notebook, cluster: None) -> None:
    registry.remove(ID)
    registry.record(ID, "limited", "aws", {"nodes": 1, "autostop": True})
    with pytest.raises(UsageError, match="keeps its disks, as --autostop says.*leave out --max-c"):
        notebook.run("%sky start limited --max-cost 5")
    # Nothing of it is recorded.
    assert left(0) is None


@pytest.mark.parametrize(
    ("cost", "says"),
    [
        (DiskCost(0.5), "its disks cost $0.50 an hour, $365.00 a month"),
        (DiskCost(None), "what its disks cost is not known"),
        (
            DiskCost(None, 4.0),
            "what its disks cost is not known, so --max-cost does not count them",
        ),
        (
            DiskCost(0.5, 4.0),
            "its disks cost $0.50 an hour, $365.00 a month, which the $4.00 left of --max-cost pay "
            "for 8 h 00 min: only `%sky down` ends them then",
        ),
        (
            DiskCost(0.5, -1.0),
            "its disks cost $0.50 an hour, $365.00 a month, and --max-cost is spent: only `%sky "
            "down` ends them",
        ),
    ],
)
def test_what_is_said_of_it(cost: DiskCost, says: str) -> None:
    assert disks_cost(cost) == says
