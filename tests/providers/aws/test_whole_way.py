"""From an empty account to an all-reduce on four instances, and back to an empty account."""

from __future__ import annotations

import stat
import uuid
from collections.abc import Callable

import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.aws.clients import Clients
from tests.lab import Lab
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.machines import Machines


def test_from_nothing_to_an_all_reduce_and_back(
    start: Start, machines: Machines, clients: Clients, lab: Lab, left: Callable[[], list[str]]
) -> None:
    said: list[str] = []
    cells = start(say=said.append, max_cost=40)
    place = "us-east-1, account 123456789012"
    ends = "ends after 1 h 00 min without a run"
    assert said[1] == f"4 × d3.xlarge for $0.84 an hour in {place}, {ends}"
    cells.run("import torch, socket, torch.distributed as dist")
    cells.run("total = torch.ones(1) * dist.get_rank()\ndist.all_reduce(total)")
    assert cells.ask("total.item()") == [6.0] * 4
    assert cells.ask("socket.gethostname()") == [host.name for host in machines.hosts.values()]
    snapshot = cells.cluster.snapshot()["cluster"]
    assert snapshot["price"] == pytest.approx(0.8 + 4 * 100 * 0.08 / 730)
    assert 0 < snapshot["cost"] < 0.1

    found = clients.ec2.describe_instances(InstanceIds=list(machines.hosts))["Reservations"]
    for instance in [each for reservation in found for each in reservation["Instances"]]:
        assert instance["MetadataOptions"]["HttpTokens"] == "required"
        tags = {tag["Key"]: tag["Value"] for tag in instance["Tags"]}
        assert tags["jupyter-sky"] == cells.cluster.id
        assert tags["jupyter-sky-cluster"] == cells.cluster.name
        number = instance["InstanceId"]
        attribute = "instanceInitiatedShutdownBehavior"
        behaviour = clients.ec2.describe_instance_attribute(InstanceId=number, Attribute=attribute)
        assert behaviour["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate"
    for volume in clients.ec2.describe_volumes()["Volumes"]:
        assert volume["Encrypted"]
        assert volume["VolumeType"] == "gp3"
    [group] = clients.ec2.describe_security_groups(GroupNames=[f"jupyter-sky-{cells.cluster.id}"])[
        "SecurityGroups"
    ]
    among, login = group["IpPermissions"]
    assert [pair["GroupId"] for pair in among["UserIdGroupPairs"]] == [group["GroupId"]]
    assert among["IpRanges"] == []
    assert (login["FromPort"], login["ToPort"]) == (22, 22)
    assert [each["CidrIp"] for each in login["IpRanges"]] == [f"{lab.address}/32"]

    cells.cluster.down()
    assert left() == []
    assert registry.find(cells.cluster.name) is None
    assert not any(host.is_up for host in machines.hosts.values())
    assert not (home() / "aws" / "keys" / cells.cluster.id).exists()


def test_nobody_else_gets_in(start: Start, machines: Machines, clients: Clients) -> None:
    cells = start(2, framework=False)
    keys = home() / "aws" / "keys" / cells.cluster.id
    assert stat.S_IMODE(keys.stat().st_mode) == 0o700
    for path in keys.iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600, path
    secrets = [(keys / name).read_text() for name in ("id_ed25519", "host_key")]
    known = (keys / "known_hosts").read_text()
    shown = set()
    agents = {node.addr: node.port for node in cells.cluster.state.nodes}
    for instance, host in machines.hosts.items():
        beyond = {
            each for each in host.listening() if not each[0].startswith(("127.", "[::ffff:127."))
        }
        head = cells.cluster.state.nodes[0].addr
        # sshd, the agent, and on the head where ranks meet; nothing at all addresses.
        assert {address for address, _ in beyond} == {host.address}
        assert {22, agents[host.address]} <= {port for _, port in beyond}
        assert len(beyond) <= (3 if host.address == head else 2)
        boot_key = machines.user_data[instance]["ssh_keys"]["ed25519_public"]
        key = " ".join((host.folder / "etc/ssh/ssh_host_ed25519_key.pub").read_text().split()[:2])
        assert key != boot_key, "user data can be read by others"
        assert f"{host.address} {key}\n" in known
        shown.add(key)
        for process in host.processes("jupyter_sky"):
            assert not [name for name in process.environ() if name.startswith("AWS_")]
    assert len(shown) == 2, "each machine has a key of its own"
    database = (home() / "registry.sqlite").read_bytes()
    for secret in secrets:
        assert secret.splitlines()[1].encode() not in database


def test_a_stranger_in_place_of_an_instance_is_refused(
    start: Start, machines: Machines, account: Account, left: Callable[[], list[str]]
) -> None:
    def swap(instance: str, address: str, params: dict[str, str]) -> None:
        own = params["UserData"]
        machines._run(instance, address, {**params, "UserData": _with_another_key(own)})

    account.on_run = swap
    with pytest.raises(SkyError, match="its host key has changed"):
        start(1, framework=False)
    assert left() == []
    assert not any(host.is_up for host in machines.hosts.values())


def _with_another_key(user_data: str) -> str:
    import base64
    import json

    from jupyter_sky.providers.aws.ec2.key_pairs import make_keys

    config = json.loads(base64.b64decode(user_data).decode().partition("\n")[2])
    keys = make_keys(f"stranger-{uuid.uuid4().hex}")
    private, public = keys.host_key
    keys.remove()
    config["ssh_keys"] = {"ed25519_private": private, "ed25519_public": public}
    return base64.b64encode(f"#cloud-config\n{json.dumps(config)}".encode()).decode()
