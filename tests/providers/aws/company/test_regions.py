"""Several regions, tried in their order: where the first has no capacity, the second is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from jupyter_sky.providers.aws import clients as aws_clients
from tests.lab import Lab
from tests.notebook.kernels import LiveNotebook
from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal
from tests.providers.aws.stand_in.leftovers import find_resources
from tests.providers.aws.stand_in.machines import Machines
from tests.providers.aws.stand_in.notebook import renting_notebook


@pytest.fixture
def notebook(machines: Machines, lab: Lab, tmp_path: Path) -> Iterator[LiveNotebook]:
    machines.have_public_addresses()
    with renting_notebook(tmp_path / "n.ipynb", ssh_from=f"{lab.address}/32", user="root") as made:
        yield made


def test_the_second_region_is_taken_where_the_first_has_no_capacity(
    notebook: LiveNotebook, account: Account, left: Callable[[], list[str]]
) -> None:
    def refuse_first(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        zone = call.params.get("Placement.AvailabilityZone", "")
        if call.action == "RunInstances" and zone.startswith("eu-west-1"):
            return refusal("InsufficientInstanceCapacity", "We have no sufficient capacity.")
        return carry_out()

    account.fault = refuse_first
    line = "%%sky --provider aws --region eu-west-1,us-east-1 --nodes 2 --cpus 4+\nprint('there')"
    cell = notebook.succeed(line)
    compared, refused, then, printed = cell.stdout.splitlines()
    assert compared.startswith("aws in eu-west-1 costs $")
    assert refused.startswith("not aws in eu-west-1: AWS has no capacity for 2 such instances now")
    assert then == "now aws in us-east-1, which costs $0.43 an hour"
    assert printed == "there"
    assert any("2 aws nodes, 2 ranks on CPU, $0.43 an hour" in text for text in cell.shown)
    assert find_resources(aws_clients.clients("eu-west-1")) == []
    assert [text for text in left() if "us-east-1" in text]
    assert notebook.succeed(line).stdout == "there\n"
    sentence = notebook.run("%%sky --region eu-west-1,us-west-2\npass").sentence
    assert "with --region us-east-1, and the cell asks for eu-west-1,us-west-2" in sentence
    # A snapshot is removed where it is, wherever new clusters start by now.
    [made, *_] = notebook.succeed("%sky snapshot").stdout.split()
    notebook.succeed("%config Sky.region = 'eu-west-1'")
    assert made in notebook.succeed(f"%sky snapshot --remove {made}").stdout
    # Another kernel finds it where it is.
    notebook.restart()
    notebook.succeed("%load_ext jupyter_sky")
    costs = notebook.succeed("%sky costs").stdout
    assert "us-east-1" in costs
    assert "eu-west-1" not in costs
    notebook.succeed("%sky down")
    assert left() == []
