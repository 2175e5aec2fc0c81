"""The settings of `jupyter_sky.AWS`, and checks of their values."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.tags import check_tags

_DEFAULT_DISK = 100  # GB: the Deep Learning image takes more than half of it

_RESERVATION = r"cr-[0-9a-f]+"


@dataclass(frozen=True)
class Settings:
    """The settings of the AWS provider.

    Parameters
    ----------
    region, zone
        Region and zone; by default, the region of the AWS configuration, and any of its zones.
    instance_type
        The instance type; by default, the cheapest one that fits.
    spot
        Whether to use cheaper machines that may be taken away.
    max_price
        Dollars per hour that all nodes together may cost, with their disks and public addresses.
    max_cost
        Dollars after which the machines power off by themselves, even during a run. Their disks and
        public addresses count, and traffic does not. Disks of stopped machines count too, and only
        ``%sky down`` ends these.
    ask_above
        Dollars per hour above which the user is asked first; setting ``max_price`` answers the
        question.
    image_id, user
        An image, and its login user; by default, the newest Ubuntu.
    disk
        Gigabytes of disk on each machine.
    kms_key
        Your key for encrypting the disks, by its id, alias or ARN; by default, AWS's own.
    tags
        Tags on everything that is created, besides our own: ``{"team": "vision"}``.
    placement
        Whether to place several nodes close together, if their type supports that.
    capacity_reservation
        A capacity reservation or Capacity Block to take the nodes from: ``"cr-0f1e"``.
    subnet
        The subnet, or several in the order in which they are tried; by default, those of the
        default network.
    security_group
        An existing security group; by default, one is made for each cluster. It must allow SSH from
        this computer or the `bastion`, and connections between nodes on all ports.
    addresses
        ``"public"``, or ``"private"`` if this computer is in the network or `bastion` leads into
        it.
    bastion
        A jump host of ``~/.ssh/config``. It is the one that logs in, so that it needs `ssh_from`,
        or a `security_group` that lets it in.
    ssm
        Whether to reach machines by sessions of AWS Systems Manager: no port is open, and no public
        address is needed if the subnet can reach the service. The role of `instance_profile` must
        have AmazonSSMManagedInstanceCore; the AWS command line and its Session Manager plugin must
        be on this computer.
    ssh_from
        The addresses that may log in, as CIDR; by default, only this computer's. With a `bastion`,
        those from which it reaches machines.
    instance_profile
        The name of an IAM instance profile; by default, machines have no permissions at AWS.
    profile
        The profile of the AWS configuration.
    python
        An interpreter that the image already has; see `jupyter_sky.SSH`.
    idle_timeout
        The default of seconds without a run after which a cluster ends itself, even while a
        notebook is connected; ``None`` for never.
    grace
        Seconds after which nodes end if no notebook is connected and nothing runs.
    watch_every
        Seconds between a machine's checks whether it is still needed.
    spot_or_on_demand
        Whether to use spot machines if there are any, and others otherwise.
    """

    region: str | None = None
    zone: str | None = None
    instance_type: str | None = None
    spot: bool = False
    max_price: float | None = None
    max_cost: float | None = None
    ask_above: float = 10.0
    image_id: str | None = None
    user: str | None = None
    disk: int = _DEFAULT_DISK
    kms_key: str | None = None
    tags: Mapping[str, str] | None = field(default=None, hash=False)
    placement: bool = True
    capacity_reservation: str | None = None
    subnet: str | Sequence[str] | None = None
    security_group: str | None = None
    addresses: str = "public"
    bastion: str | None = None
    ssh_from: str | None = None
    instance_profile: str | None = None
    profile: str | None = None
    python: str | None = None
    idle_timeout: float | None = 3600.0
    grace: float = 900.0
    watch_every: int = 30
    spot_or_on_demand: bool = False
    ssm: bool = False

    def __post_init__(self) -> None:
        check_settings(self)
        if self.addresses not in ("public", "private"):
            raise UsageError(
                f'addresses={self.addresses!r}: type addresses="public" or addresses="private".'
            )
        given = self.capacity_reservation
        if given is not None and not re.fullmatch(_RESERVATION, given):
            raise UsageError(
                f"capacity_reservation={given!r} is none: type its id, which begins with cr-."
            )
        if given is not None and (self.spot or self.spot_or_on_demand):
            raise UsageError("what is reserved is not spot: leave out one of the two.")
        if self.ssm and (self.bastion or self.ssh_from):
            other = "bastion" if self.bastion else "ssh_from"
            raise UsageError(
                f"--ssm lets nobody in at a port, which {other} is about: leave out one."
            )
        if self.bastion and self.ssh_from is None and self.security_group is None:
            raise UsageError(
                f"bastion={self.bastion!r} is who logs in: set ssh_from, to the addresses from "
                'which it reaches machines, like ssh_from="10.0.0.0/16", or a security_group that '
                "lets it in."
            )

    @property
    def subnets(self) -> tuple[str, ...]:
        """The subnets to try, in order; empty for those of the default network."""
        if self.subnet is None:
            return ()
        names = self.subnet.split(",") if isinstance(self.subnet, str) else self.subnet
        return tuple(each.strip() for each in names if each.strip())


def check_settings(settings: Settings) -> None:
    """Refuse values of the wrong type, as the annotations tell.

    Raises
    ------
    UsageError
        With the name of the setting, and its type.
    """
    for each in fields(settings):
        name, value, kind = each.name, getattr(settings, each.name), str(each.type)
        if value is None and kind.endswith(" | None"):
            continue
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        match kind.removesuffix(" | None"):
            case "bool":
                fits, advice = isinstance(value, bool), f": type {name}=True or {name}=False."
            case "float":
                fits = is_number and value >= 0
                advice = f" is no amount: type a number, like {name}=20."
            case "int":
                fits = is_number and isinstance(value, int) and value >= 1
                advice = f": type a whole number, like {name}=100."
            case "Mapping[str, str]":
                check_tags(value)
                continue
            case "str | Sequence[str]" if isinstance(value, list | tuple):
                fits = all(isinstance(one, str) for one in value)
                advice = ": type a list of names, each in quotes."
            case _:
                fits, advice = isinstance(value, str | None), " is no text: put it in quotes."
        if not fits:
            raise UsageError(f"{name}={value!r}{advice}")
