"""An instance with an agent of ours: a machine to reach over SSH that we know how to log in to."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import AWSError, Clients, clients_at, explained
from jupyter_sky.providers.aws.ec2 import user_data
from jupyter_sky.providers.aws.ec2.key_pairs import Keys, keys_of
from jupyter_sky.providers.aws.ec2.user_data import renew_host_key
from jupyter_sky.providers.base import AgentGone, Machine, MachineGone, Node
from jupyter_sky.providers.ssh.connection.connection import HostError, Line, lines
from jupyter_sky.providers.ssh.connection.host_keys import HostKeyError
from jupyter_sky.providers.ssh.connection.ssh_config import Login
from jupyter_sky.providers.ssh.connection.targets import parse_one
from jupyter_sky.providers.ssh.machine import SSHMachine, in_thread

LOGIN_WITHIN = 300.0
"""Seconds for an instance to let us in, once AWS says that it runs."""

RENEWED_WITHIN = 15.0
"""Seconds for its SSH server to take up a new host key."""

_PAUSE = 0.5


@dataclass(frozen=True)
class Instance(SSHMachine):
    """An instance with an agent, which is one node.

    Attributes
    ----------
    id, cluster
        The instance, and the id of the cluster whose keys let in.
    place, zone, type
        Where and what it is; see `jupyter_sky.providers.aws.clients.Clients`.
    bastion
        A host to go through.
    content
        The key of a snapshot of it.
    spot
        Whether AWS may take it away.
    """

    id: str = ""
    cluster: str = ""
    place: str = ""
    zone: str = ""
    type: str = ""
    bastion: str | None = None
    content: str = ""
    spot: bool = False

    @classmethod
    def on(cls, machine: Machine, **about: Any) -> Instance:
        """Return a machine that was reached over SSH as the instance that it is."""
        return cls(**{**machine.row(), **about})

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Instance:
        """Return the machine that `row` described."""
        return cls(**{**row, "nodes": tuple(map(Node.of, row["nodes"]))})

    def row(self) -> dict[str, Any]:
        """Return what the registry keeps of it; no key is in it."""
        about = ("id", "cluster", "place", "zone", "type", "bastion", "content", "spot")
        return {**super().row(), **{name: getattr(self, name) for name in about}}

    async def open(self) -> socket.socket:
        """Connect to the agent over a bridge."""
        try:
            return await super().open()
        except AgentGone:
            raise
        except OSError:
            if reason := await in_thread(self._why_gone):
                raise MachineGone(reason) from None
            raise

    def _why_gone(self) -> str | None:
        """Return why the instance is no more, if it is."""
        ec2 = clients_at(self.place).ec2
        try:
            with explained():
                found = ec2.describe_instances(InstanceIds=[self.id])
                [said] = found["Reservations"][0]["Instances"]
                if said["State"]["Name"] not in ("pending", "running"):
                    why = said.get("StateReason", {}).get("Message", "").rpartition(": ")[2]
                    return f"it was terminated ({why})" if why else "it was terminated"
                checks = ec2.describe_instance_status(InstanceIds=[self.id])["InstanceStatuses"]
        except AWSError as error:
            return "it was terminated" if error.code == "InvalidInstanceID.NotFound" else None
        for kind in ("System", "Instance"):
            if any(each[f"{kind}Status"]["Status"] == "impaired" for each in checks):
                return f"it fails AWS's {kind.lower()} status check"
        return None

    async def remove(self) -> None:
        """Do nothing: what is on it goes when it is terminated, which `AWS.release` sees to."""
        self._line.close_if_unused()

    def is_private(self, there: Clients) -> bool:
        """Return whether it is reached at its private address."""
        with explained():
            found = there.ec2.describe_instances(InstanceIds=[self.id])
        [said] = found["Reservations"][0]["Instances"]
        return bool(said.get("PrivateIpAddress") == self.host.partition("@")[2])

    def seconds_paid(self) -> float | None:
        """Return the seconds until it powers off because the money is spent, if it ever does."""
        said = self._line.run(user_data.ASK_LIMIT).split()
        return float(said[0]) if said else None

    def limit(self, seconds: float) -> None:
        """Have it power off in so many seconds, whatever goes on."""
        self._line.run(user_data.limit(seconds))

    def flush(self) -> None:
        """Have everything on its disk that was written there."""
        self._line.run("sync")

    @property
    def _line(self) -> Line:
        return know(self.host, keys_of(self.cluster), self.bastion)


def reach(
    host: str, keys: Keys, bastion: str | None, say: Callable[[str], None], renewed: bool = False
) -> None:
    """Wait until an instance lets us in.

    Parameters
    ----------
    say
        Told what goes on; raising from it ends the matter.
    renewed
        Whether its host key was renewed a moment ago, so that it may still show the old one.

    Raises
    ------
    HostError
        When it does not let us in.
    HostKeyError
        When another machine answers in its place.
    """
    line = know(host, keys, bastion)
    start = time.monotonic()
    while True:
        say(f"waiting for {host} to {'show its new key' if renewed else 'boot'}")
        try:
            line.connect()
            return
        except SkyError as error:
            patience = LOGIN_WITHIN
            if isinstance(error, HostKeyError):
                patience = RENEWED_WITHIN if renewed else 0.0
            if time.monotonic() - start > patience:
                raise HostError(f"{host} does not let us in: {error}") from None
        time.sleep(_PAUSE)


def renew(host: str, keys: Keys, bastion: str | None) -> str:
    """Give an instance that was reached a host key of its own, and return that key."""
    line = know(host, keys, bastion)
    try:
        key = line.run(renew_host_key()).split()
    finally:
        line.close()
    return " ".join(key[:2])


def know(host: str, keys: Keys, bastion: str | None) -> Line:
    """Have an instance reached with the keys of its cluster from now on, and return the line.

    Parameters
    ----------
    host
        ``USER@ADDRESS``.
    bastion
        A host of the person's to go through.
    """
    target = parse_one(host)
    way = Login(
        address=target.name,
        port=22,
        user=target.user or "root",
        key_name=target.name,
        identity_files=(keys.private,),
        certificates=(),
        only_these=True,
        use_agent=False,
        jumps=(bastion,) if bastion else (),
        proxy_command=None,
        known_hosts=(keys.known_hosts,),
    )
    return lines.put(target, way)
