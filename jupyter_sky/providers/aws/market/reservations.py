"""Capacity that was reserved before: on-demand capacity reservations and Capacity Blocks."""

from __future__ import annotations

from dataclasses import dataclass, replace

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.market import prices
from jupyter_sky.providers.aws.market.instance_types import catalog
from jupyter_sky.providers.aws.market.selection import InstanceOffer, InstanceRequirements, select


@dataclass(frozen=True)
class Reservation:
    """What is reserved.

    Attributes
    ----------
    id, type, zone
        What it is and where.
    free
        Number of instances that can be started in it now.
    is_block
        Whether it is a Capacity Block, which is paid in advance.
    """

    id: str
    type: str
    zone: str
    free: int
    is_block: bool


def find_reservation(clients: Clients, name: str) -> Reservation:
    """Return a reservation by its id.

    Raises
    ------
    UsageError
        When there is none, or it cannot be used now.
    """
    try:
        with explain_errors():
            found = clients.ec2.describe_capacity_reservations(CapacityReservationIds=[name])
    except AWSError as error:
        if not error.code.startswith("InvalidCapacityReservationId"):
            raise
        found = {"CapacityReservations": []}
    if not found["CapacityReservations"]:
        raise UsageError(
            f"there is no capacity reservation {name} in {clients.region}: "
            "`aws ec2 describe-capacity-reservations` in a terminal lists them."
        )
    [said] = found["CapacityReservations"]
    if said["State"] != "active":
        begins = said.get("StartDate")
        when = f", and begins {begins:%Y-%m-%d %H:%M} UTC" if begins else ""
        raise UsageError(
            f"the capacity reservation {name} is {said['State']}{when}: name one that is active."
        )
    return Reservation(
        name,
        said["InstanceType"],
        said["AvailabilityZone"],
        int(said["AvailableInstanceCount"]),
        said.get("ReservationType") == "capacity-block",
    )


def reserved_offer(
    clients: Clients, reservation: Reservation, required: InstanceRequirements, present: int = 0
) -> InstanceOffer:
    """Return what a reservation offers, where that is what is required.

    Parameters
    ----------
    present
        Number of nodes that are in it already.

    Raises
    ------
    UsageError
        When it is something else, or has not enough.
    """
    name, wanted_now = reservation.id, required.nodes - present
    if wanted_now > reservation.free:
        free = format_count(reservation.free, "instance")
        raise UsageError(
            f"{name} has {free} free, and {wanted_now} are wanted: take fewer nodes, or leave "
            "out capacity_reservation."
        )
    for option, wanted, has in (
        ("--instance-type", required.instance_type, reservation.type),
        ("--zone", required.zone, reservation.zone),
    ):
        if wanted not in (None, has):
            raise UsageError(f"{name} is for {has}, and not {wanted}: leave out {option}.")
    known, usual = catalog(clients), prices.on_demand(clients)[0]
    fitting = InstanceRequirements(
        nodes=required.nodes,
        accelerator=required.accelerator,
        cpus=required.cpus,
        memory=required.memory,
        instance_type=reservation.type,
        zone=reservation.zone,
        max_price=None if reservation.is_block else required.max_price,
        besides=required.besides,
    )
    [offer] = select(fitting, known, usual, {})
    if reservation.is_block:
        offer = replace(offer, prices={reservation.zone: 0.0}, is_block=True)
    return replace(offer, reservation=reservation.id)
