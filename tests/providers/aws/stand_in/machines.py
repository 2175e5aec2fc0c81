"""Instances as hosts of the lab: what the account runs boots, and what it terminates is gone.

A host has the instance's private address, lets in the key pair that it was launched with, and does
with its user data what cloud-init does.
"""

from __future__ import annotations

import contextlib
import json
import re
import shlex
import shutil
import sys
import threading
from base64 import b64decode
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import psutil

from jupyter_sky.providers.aws.clients import Clients, clients_at
from jupyter_sky.providers.aws.ec2.user_data import ASK_POWER_OFF
from jupyter_sky.providers.aws.network.security_group import is_let_in
from tests.lab import Host, Lab
from tests.providers.aws.stand_in.account import Account, Params
from tests.providers.aws.stand_in.metadata import ADDRESS

_FIRST = 100  # the numbers of the lab's own hosts are below
_PUBLIC = 60  # and so are their addresses; those of the subnet begin with 128


class Machines:
    """The hosts of an account's instances.

    Attributes
    ----------
    hosts
        Those that have run, by the instance's id.
    user_data
        What they were told, by the instance's id.
    """

    def __init__(self, lab: Lab, account: Account) -> None:
        self._lab = lab
        self._account = account
        self.hosts: dict[str, Host] = {}
        self.user_data: dict[str, dict[str, Any]] = {}
        self._terminated: set[str] = set()
        self._off: set[str] = set()
        self._cut: set[int] = set()
        self._given = 0
        self._ec2 = clients_at("us-east-1").ec2
        account.on_run = self._run
        account.on_terminate = self._terminate
        account.on_stop = self._stop
        account.on_start = self._start_again
        account.on_image = self._copy
        self._disks: dict[str, Path] = {}
        self._guarded = False
        self._is_public = False

    def subnet(self, clients: Clients) -> str:
        """Make a subnet at the lab's addresses, beyond those of its own hosts."""
        network = self._lab.address.rpartition(".")[0]
        vpc = clients.ec2.create_vpc(CidrBlock=f"{network}.0/24")["Vpc"]["VpcId"]
        made = clients.ec2.create_subnet(
            VpcId=vpc, CidrBlock=f"{network}.128/25", AvailabilityZone="us-east-1a"
        )
        return str(made["Subnet"]["SubnetId"])

    def have_public_addresses(self) -> None:
        """Have instances public addresses of their own, another one after each start."""
        self._is_public = True

    def guard(self) -> None:
        """Have security groups hold for this machine: who is not named in them gets no answer."""
        self._guarded = True
        self._account.on_rules = self._filter

    def _filter(self) -> None:
        groups = self._ec2.describe_security_groups()["SecurityGroups"]
        for host in self.hosts.values():
            if not host.is_up:
                continue
            host.run("iptables", "-F")
            for each in groups:
                if each["GroupName"].startswith("jupyter-sky-") and not is_let_in(
                    each, self._lab.address
                ):
                    # As there, connections that are open stay open.
                    new = ["-p", "tcp", "--dport", "22", "--syn", "-s", self._lab.address]
                    host.run("iptables", "-A", "INPUT", *new, "-j", "DROP")

    def close(self) -> None:
        """Cut the power of all of them."""
        self._account.on_run = lambda instance, address, params: None
        self._account.on_terminate = lambda instance: None
        self._account.on_stop = lambda instance: None
        self._account.on_start = lambda instance: None
        self._account.addresses.clear()
        self._account.on_image = lambda image, instance: None
        self._account.on_rules = lambda: None
        self._terminated.update(self.hosts)
        for host in self.hosts.values():
            host.remove()
        for disk in self._disks.values():
            shutil.rmtree(disk, ignore_errors=True)

    def interrupt(self, instance: str, seconds: float) -> None:
        """Have a spot instance hear that it will be taken away."""
        until = datetime.now(UTC) + timedelta(seconds=seconds)
        said = {"action": "terminate", "time": until.strftime("%Y-%m-%dT%H:%M:%SZ")}
        self._say(instance, "spot/instance-action", said)

    def recommend_to_leave(self, instance: str) -> None:
        """Have a spot instance hear that it is likely to be taken away."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._say(instance, "events/recommendations/rebalance", {"noticeTime": now})

    def _say(self, instance: str, path: str, said: dict[str, str]) -> None:
        place = self.hosts[instance].folder / "metadata" / path
        place.parent.mkdir(parents=True, exist_ok=True)
        new = place.with_suffix(".new")
        new.write_text(json.dumps(said))
        new.replace(place)

    def _run(self, instance: str, address: str, params: Params) -> None:
        number = _FIRST + len(self.hosts)
        if self._is_public:
            address = self._new_address(instance)
        host = Host(
            name=f"lab{number}",
            address=address,
            folder=self._lab.folder / f"lab{number}",
            wire=f"sky{self._lab.index}h{number}",
            gateway=self._lab.address,
            bridge=self._lab.bridge,
        )
        self.hosts[instance] = host
        config = _cloud_config(params["UserData"])
        self.user_data[instance] = config
        keys = host.folder / "keys"
        host.make(keys, f"127.0.0.1 localhost\n{address} {host.name}\n")
        keys.mkdir()
        (keys / "authorized_keys").write_text(self._account.public_keys[params["KeyName"]])
        (keys / "ca.pub").write_text("")
        if disk := self._disks.get(params["ImageId"]):
            shutil.copytree(disk, host.home, symlinks=True, dirs_exist_ok=True)
        _follow(config, host.folder / "etc")
        if params.get("InstanceMarketOptions.MarketType") == "spot":
            _have_metadata(host)
        # It takes its time to boot, and AWS answers before.
        threading.Thread(target=self._live, args=(instance, host)).start()

    def _new_address(self, instance: str) -> str:
        self._given += 1
        network = self._lab.address.rpartition(".")[0]
        address = self._account.addresses[instance] = f"{network}.{_PUBLIC + self._given}"
        return address

    def _stop(self, instance: str) -> None:
        self._off.add(instance)
        self._account.addresses.pop(instance, None)
        if instance in self.hosts:
            self._cut.add(self.hosts[instance].pid)
            self.hosts[instance].power_off()

    def _start_again(self, instance: str) -> None:
        """Boot from the same disk; what is in memory is lost, and a public address is another."""
        if instance not in self.hosts or (host := self.hosts[instance]).is_up:
            return
        if self._is_public:
            before, address = host.address, self._new_address(instance)
            host = self.hosts[instance] = replace(host, address=address)
            for name in ("sshd_config", "hosts"):
                file = host.folder / "etc" / name
                file.write_text(file.read_text().replace(before, address))
        self._off.discard(instance)
        threading.Thread(target=self._live, args=(instance, host)).start()

    def _live(self, instance: str, host: Host) -> None:
        """Boot, and note when the machine powers off by itself."""
        try:
            host.start()
        except RuntimeError:
            if instance in self._terminated | self._off:
                return
            raise
        if self._guarded:
            self._filter()
        pid = host.pid
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).wait()
        if instance in self._terminated or pid in self._cut:
            return
        said = self._ec2.describe_instance_attribute(
            InstanceId=instance, Attribute="instanceInitiatedShutdownBehavior"
        )
        if said["InstanceInitiatedShutdownBehavior"]["Value"] == "terminate":
            self._ec2.terminate_instances(InstanceIds=[instance])
        else:
            self._ec2.stop_instances(InstanceIds=[instance])

    def _copy(self, image: str, instance: str) -> None:
        """Keep what is on an instance's disk: here, in the home of root."""
        disk = self._disks[image] = self._lab.folder / image
        shutil.copytree(self.hosts[instance].home, disk, symlinks=True)

    def _terminate(self, instance: str) -> None:
        self._terminated.add(instance)
        if instance in self.hosts:
            self.hosts[instance].power_off()


def _have_metadata(host: Host) -> None:
    """Have an instance's metadata at the address where it is, in the host's own network."""
    folder = host.folder / "metadata"
    folder.mkdir()
    serve = [sys.executable, str(Path(__file__).with_name("metadata.py")), str(folder)]
    with (host.folder / "etc" / "boot").open("a") as boot:
        boot.write(f"ip address add {ADDRESS}/32 dev lo\n{shlex.join(serve)} &\n")


def seconds_left(host: Host) -> int:
    """Return in how many seconds a machine powers off, as it says itself."""
    return int(host.run("sh", "-c", ASK_POWER_OFF))


def _cloud_config(user_data: str) -> dict[str, Any]:
    text = b64decode(user_data).decode()
    assert text.startswith("#cloud-config\n")
    config: dict[str, Any] = json.loads(text.partition("\n")[2])
    return config


def _follow(config: dict[str, Any], etc: Path) -> None:
    """Do what cloud-init does: host keys before the SSH server starts, and ``bootcmd``."""
    ssh = etc / "ssh"
    ssh.mkdir()
    key = ssh / "ssh_host_ed25519_key"
    key.write_text(config["ssh_keys"]["ed25519_private"])
    key.chmod(0o600)
    Path(f"{key}.pub").write_text(config["ssh_keys"]["ed25519_public"] + "\n")
    server = etc / "sshd_config"
    server.write_text(
        re.sub("(?m)^HostKey .*$", f"HostKey /etc/ssh/{key.name}", server.read_text())
    )
    power = etc.parent / "bin" / "poweroff"
    power.write_text("#!/bin/sh\nkill -TERM 1\n")
    power.chmod(0o755)
    # What clears the disk of a snapshot would clear this machine's, which hosts share.
    commands = "\n".join(
        shlex.join(words) for words in config["bootcmd"] if words[0] != "cloud-init-per"
    )
    (etc / "boot").write_text(
        "trap 'exit 0' TERM\n"
        f"mount --bind {ssh} /etc/ssh\n"
        # Hosts share this machine's disk, and not what is in memory.
        "mount -t tmpfs tmpfs /run\nmkdir -p /run/sshd\n"
        f"mkdir -p {etc.parent}/misc && mount --bind {etc.parent}/misc /var/lib/misc\n"
        f"export PATH={power.parent}:$PATH\n"
        f"{commands}\n"
    )
