"""An EC2 instance with an agent, as a machine."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from jupyter_sky.providers.aws import rented
from jupyter_sky.providers.aws.clients import clients_at
from jupyter_sky.providers.aws.ec2 import user_data
from jupyter_sky.providers.aws.ec2.login import InstanceLogin
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.network import access
from jupyter_sky.providers.base import (
    AgentGone,
    Machine,
    MachineGone,
    MachineStopped,
    Node,
    NotLetIn,
)
from jupyter_sky.providers.ssh.connection.connection import SSHConnection
from jupyter_sky.providers.ssh.machine import SSHMachine, in_thread

ENDED = ("shutting-down", "terminated")
"""States of instances whose disks are gone, too."""


@dataclass(frozen=True)
class Instance(SSHMachine):
    """An instance with an agent, which is one node.

    Attributes
    ----------
    id, cluster
        The ids of the instance and of the cluster whose keys it lets in.
    location, zone, type
        Where and what it is; see `jupyter_sky.providers.aws.clients.Clients`.
    bastion
        A host to go through.
    content
        The key of a snapshot of it.
    spot
        Whether AWS may take it away.
    ssm
        Whether it is reached by sessions of Systems Manager.
    """

    id: str = ""
    cluster: str = ""
    location: str = ""
    zone: str = ""
    type: str = ""
    bastion: str | None = None
    content: str = ""
    spot: bool = False
    ssm: bool = False

    @property
    def user(self) -> str:
        """Who logs in there."""
        return self.host.partition("@")[0]

    @property
    def address(self) -> str:
        """Where it is reached."""
        return self.host.partition("@")[2]

    @classmethod
    def from_machine(cls, machine: Machine, **about: Any) -> Instance:
        """Return a machine that was reached over SSH as the instance that it is."""
        return cls(**{**machine.row(), **about})

    async def open(self) -> socket.socket:
        """Connect to the agent."""
        try:
            return await super().open()
        except AgentGone:
            raise
        except OSError:
            if gone := await in_thread(self._why_gone):
                raise gone from None
            # The notebook may be somewhere else by now.
            if trouble := await in_thread(self.let_in):
                raise NotLetIn(trouble) from None
            raise

    async def remove(self) -> None:
        """Do nothing: all that is on it goes when the provider terminates it."""
        self._connection.close_if_unused()

    def row(self) -> dict[str, Any]:
        """Return what the registry keeps of it; no key is in it."""
        about = ("id", "cluster", "zone", "type", "bastion", "content", "spot", "ssm")
        said = {name: getattr(self, name) for name in about}
        return {**super().row(), **said, "place": self.location}

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Instance:
        """Return the machine that `row` described."""
        about = {name: value for name, value in row.items() if name != "place"}
        nodes = tuple(map(Node.from_message, row["nodes"]))
        return cls(**{**about, "nodes": nodes, "location": row["place"]})

    def let_in(self) -> str | None:
        """See to it that this computer may log in; say what keeps it from that, if something does.

        Behind a bastion and by Systems Manager, it is not this computer that logs in.
        """
        if self.bastion or self.ssm:
            return None
        return access.let_in(clients_at(self.location), self.cluster, self.address)

    def is_private(self, said: Mapping[str, Any]) -> bool:
        """Return whether it is reached at its private address; ``said`` is AWS's description."""
        return bool(said.get("PrivateIpAddress") == self.address)

    def seconds_until_power_off(self) -> float | None:
        """Return the seconds until it powers off because the money is spent, if it ever does."""
        said = self._connection.run(user_data.ASK_POWER_OFF).split()
        return float(said[0]) if said else None

    def power_off_in(self, seconds: float) -> None:
        """Let it power off in so many seconds, whatever goes on."""
        self._connection.run(user_data.power_off_script(seconds))

    def flush(self) -> None:
        """Write to its disk what is in its memory of files."""
        self._connection.run("sync")

    @property
    def _connection(self) -> SSHConnection:
        login = InstanceLogin.to(
            self.host, self.cluster, self.id, self.location, self.bastion, self.ssm
        )
        return login.connection()

    def _why_gone(self) -> MachineGone | None:
        """Return why the instance is not there, if it is not."""
        there = clients_at(self.location)
        ec2 = there.ec2
        try:
            rented.check_account(self.cluster, there)
            with explain_errors():
                found = ec2.describe_instances(InstanceIds=[self.id])
                [said] = found["Reservations"][0]["Instances"]
                if (state := said["State"]["Name"]) not in ("pending", "running"):
                    why = said.get("StateReason", {}).get("Message", "").rpartition(": ")[2]
                    because = f" ({why})" if why else ""
                    if state in ENDED:
                        return MachineGone(f"it was terminated{because}")
                    return MachineStopped(f"it was stopped{because}")
                checks = ec2.describe_instance_status(InstanceIds=[self.id])["InstanceStatuses"]
        except AWSError as error:
            is_unknown = error.code == "InvalidInstanceID.NotFound"
            return MachineGone("it was terminated") if is_unknown else None
        for kind in ("System", "Instance"):
            if any(each[f"{kind}Status"]["Status"] == "impaired" for each in checks):
                return MachineGone(f"it fails AWS's {kind.lower()} status check")
        return None
