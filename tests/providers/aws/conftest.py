"""An account at AWS of the tests' own, and a provider that rents there."""

from __future__ import annotations

import gc
import os
import shutil
import sys
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.providers.aws import AWS, local_store
from jupyter_sky.providers.aws import clients as aws_clients
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.conftest import Cells
from tests.lab import Lab
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.leftovers import find_resources
from tests.providers.aws.stand_in.machines import Machines


@pytest.fixture(scope="session")
def server() -> Iterator[Account]:
    """One server for all tests: it takes a second to load what AWS has."""
    account = Account()
    gc.freeze()  # as what is collected: see `pytest_collection`
    yield account
    account.close()


@pytest.fixture(scope="session")
def catalogs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the registries of all files find what each of them would ask the account for first.

    Processes that run tests side by side share it.
    """
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "catalogs"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="module")
def with_catalogs(home: Path, catalogs: Path) -> Iterator[None]:
    """Have this file's registry know the instance types that others have asked for.

    They never change, and to ask for them takes two seconds of processor time.
    """
    ours = local_store.folder()
    for path in catalogs.glob("*.json"):
        shutil.copy2(path, ours)
    yield
    for path in ours.glob("types-*.json"):
        if not (there := catalogs / path.name).exists():
            new = Path(shutil.copy2(path, catalogs / f"{path.name}.{os.getpid()}"))
            new.replace(there)


@pytest.fixture
def account(
    server: Account, with_catalogs: None, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Account]:
    """An account with nothing of ours in it, as a test has to leave it too."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    server.fault = None
    server.calls.clear()
    yield server
    server.fault = None
    if left := [str(each) for each in find_resources(aws_clients.clients("us-east-1"))]:
        server.reset()
        pytest.fail(f"still there: {left}")
    server.forget_ended()


@pytest.fixture
def work_profile(account: Account, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The configuration file of AWS's tools, with credentials of its own for a profile, "work"."""
    file = tmp_path / "config"
    file.write_text("[profile work]\naws_access_key_id = worker\naws_secret_access_key = secret\n")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(file))
    return file


@pytest.fixture
def clients(account: Account) -> Clients:
    return aws_clients.clients("us-east-1")


@pytest.fixture
def left(clients: Clients, account: Account) -> Callable[[], list[str]]:
    """Says what clusters hold in the account, with nothing going wrong."""

    def look() -> list[str]:
        account.fault = None
        return [str(each) for each in find_resources(clients)]

    return look


@pytest.fixture
def subnet(clients: Clients) -> str:
    """A subnet whose addresses are this machine's own, where nobody lets anybody in."""
    ours = [{"Name": "cidr-block", "Values": ["127.77.0.0/24"]}]
    for found in clients.ec2.describe_subnets(Filters=ours)["Subnets"]:
        return str(found["SubnetId"])
    vpc = clients.ec2.create_vpc(CidrBlock="127.77.0.0/16")["Vpc"]["VpcId"]
    made = clients.ec2.create_subnet(
        VpcId=vpc, CidrBlock="127.77.0.0/24", AvailabilityZone="us-east-1a"
    )
    return str(made["Subnet"]["SubnetId"])


@pytest.fixture
def machines(lab: Lab, account: Account) -> Iterator[Machines]:
    """What the account runs boots in the lab."""
    made = Machines(lab, account)
    yield made
    made.close()


Start = Callable[..., Cells]


@pytest.fixture
def start(machines: Machines, clients: Clients) -> Iterator[Start]:
    """Starts clusters on instances; they end with the test."""
    started: list[Cells] = []
    subnet = machines.subnet(clients)

    def make(
        nodes: int = 4,
        framework: bool = True,
        say: Any = print,
        replace: bool = False,
        asked: Mapping[str, Any] | None = None,
        **options: Any,
    ) -> Cells:
        usual = {"python": sys.executable, "user": "root", "addresses": "private"}
        provider = AWS(subnet=subnet, **{**usual, **options})
        name = f"aws-{uuid.uuid4().hex[:8]}"
        wanted = ClusterSpec(name, nodes=nodes, cpus="4+", replace=replace, **(asked or {}))
        spec, runtime_env = assemble(wanted, [sky.plugins.torch()] if framework else [])
        cells = Cells(Cluster.start(spec, provider, runtime_env, say))
        started.append(cells)
        return cells

    yield make
    for cells in started:
        if cells.cluster.state.phase != "down":
            cells.cluster.down()
