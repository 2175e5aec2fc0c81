"""The settings of `jupyter_sky.AWS`: what they are, and which values they have."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.tags import check_tags

_DEFAULT_DISK = 100  # GB: the Deep Learning image takes more than half of it

_SWITCHES = ("spot", "spot_or_on_demand", "placement", "ssm")
_AMOUNTS = ("max_price", "max_cost", "ask_above", "grace", "idle_timeout")
_COUNTS = ("disk", "watch_every")
_RESERVATION = r"cr-[0-9a-f]+"


@dataclass(frozen=True)
class Settings:
    """What a user of AWS can choose.

    Parameters
    ----------
    region, zone
        Where; by default the region of the AWS configuration, and any of its zones.
    instance_type
        The instance type; by default the cheapest that fits.
    spot
        Whether to take machines that cost less and may be taken away.
    max_price
        Dollars an hour that all nodes together may cost.
    max_cost
        Dollars after which the machines power off by themselves, whatever goes on. Disks of
        stopped machines count; nothing ends these but ``%sky down``.
    ask_above
        Dollars an hour above which the user is asked first; ``max_price`` answers as well.
    image_id, user
        An image, and the user that it lets in; by default the newest Ubuntu.
    disk
        Gigabytes of disk on each machine.
    kms_key
        The key of yours that encrypts the disks, by its id, alias or ARN; by default AWS's own.
    tags
        Tags on all that is made, beside those that find it again: ``{"team": "vision"}``.
    placement
        Whether several nodes are placed close together, where their type can be.
    capacity_reservation
        A capacity reservation, or a Capacity Block, that the nodes are taken from: ``"cr-0f1e"``.
    subnet
        The subnet to be in, or several in the order in which they are tried; by default those of
        the default network.
    security_group
        A security group of the company's to be in; by default one is made for each cluster. It has
        to let this computer in over SSH, and nodes reach each other at all ports.
    addresses
        ``"public"``, or ``"private"`` where this computer is in the network or `bastion` leads
        into it.
    bastion
        A host of ``~/.ssh/config`` to go through.
    ssm
        Whether to reach machines by sessions of AWS Systems Manager: no port is open to anybody,
        and no public address is needed where the subnet leads to the service. The role of
        `instance_profile` has to have AmazonSSMManagedInstanceCore; AWS's command line and its
        Session Manager plugin have to be on this computer.
    ssh_from
        Who may log in, as CIDR; by default this computer's address and no other.
    instance_profile
        The name of an IAM instance profile; by default machines may do nothing at AWS.
    profile
        The profile of the AWS configuration.
    python
        An interpreter that the image has already; see `jupyter_sky.SSH`.
    idle_timeout
        Seconds without a run after which a cluster ends itself for which none are given, also
        while a notebook is connected; ``None``: never.
    grace
        Seconds after which nodes end that no notebook is connected to and that run nothing.
    watch_every
        Seconds between two looks of a machine at whether it is still needed.
    spot_or_on_demand
        Whether to take spot machines where there are some, and others where there are none.
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
        if self.ssm and (
            other := "bastion" if self.bastion else "ssh_from" if self.ssh_from else ""
        ):
            raise UsageError(
                f"--ssm lets nobody in at a port, which {other} is about: leave out one."
            )

    @property
    def subnets(self) -> tuple[str, ...]:
        """The subnets to try, in this order; none means those of the default network."""
        if self.subnet is None:
            return ()
        names = self.subnet.split(",") if isinstance(self.subnet, str) else self.subnet
        return tuple(each.strip() for each in names if each.strip())


def check_settings(settings: Settings) -> None:
    """Refuse values of another type than settings have.

    Raises
    ------
    UsageError
        Which one it is, and how it is typed.
    """
    for each in fields(settings):
        name, value = each.name, getattr(settings, each.name)
        if name in _SWITCHES:
            if not isinstance(value, bool):
                raise UsageError(f"{name}={value!r}: type {name}=True or {name}=False.")
        elif name in _AMOUNTS:
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and value >= 0) and not (value is None and each.default is None):
                if value is None and name == "idle_timeout":
                    continue
                raise UsageError(f"{name}={value!r} is no amount: type a number, like {name}=20.")
        elif name in _COUNTS:
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise UsageError(f"{name}={value!r}: type a whole number, like {name}=100.")
        elif name == "tags":
            check_tags(value)
        elif name == "subnet" and isinstance(value, list | tuple):
            if not all(isinstance(one, str) for one in value):
                raise UsageError(f"subnet={value!r}: type a list of names, each in quotes.")
        elif value is not None and not isinstance(value, str):
            raise UsageError(f"{name}={value!r} is no text: put it in quotes.")
