"""Starting the stopped instances of a cluster again, when the user agrees to what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import power, scale_out
from jupyter_sky.providers.aws.ec2.instance import Instance
from jupyter_sky.providers.aws.ec2.launch import RentedInstance, address_of, wait_for_addresses
from jupyter_sky.providers.aws.market.besides import besides
from jupyter_sky.providers.aws.market.confirmation import confirm_price
from jupyter_sky.providers.aws.market.rounding import ROUNDING, as_limit, format_sufficient
from jupyter_sky.providers.aws.renting.budget import WORTH_IT
from jupyter_sky.providers.aws.settings import Settings
from jupyter_sky.providers.spec import ClusterSpec


def resume(
    there: Clients,
    settings: Settings,
    spec: ClusterSpec,
    machines: Sequence[Instance],
    money: float | None,
    report: Callable[[str], None],
    on_running: Callable[[], None],
) -> list[RentedInstance]:
    """Start instances, and return them in the same order when they run.

    Parameters
    ----------
    money
        Dollars that they may cost from now on.
    report
        Called between the steps; raising from it ends the matter.
    on_running
        Called before they are started, when nothing is left to be asked.

    Raises
    ------
    SkyError
        When AWS has no room for them, or this computer would not be let in.
    """
    like, ids = machines[0], [each.id for each in machines]
    report("looking at its machines")
    said = power.wait_until_stopped(there, ids, report)
    private = like.is_private(said[like.id])
    # Of what they were started with, whatever the settings say now.
    disks = scale_out.disks(there, said[like.id], settings.disk)
    paid = besides(there, not private).price(sum(disks.values()))
    offer = scale_out.offer(there, like, said[like.id], paid)
    _check_price(settings, spec.name, len(machines), offer.price)
    _check_money(spec.name, money, len(machines), offer.price)
    confirm_price(
        len(machines),
        [offer],
        settings.max_price,
        settings.ask_above,
        report,
        there.account,
        spec.idle_timeout,
    )
    # This computer may have another address by now.
    if trouble := like.let_in():
        raise SkyError(f"it could not be reached: {trouble}.")
    report(f"starting {len(ids)} × {like.type}")
    on_running()
    power.start(there, ids, offer.type.quota(offer.spot))
    running = wait_for_addresses(there, ids, private, like.type, report, were_stopped=True)
    found = {each["InstanceId"]: each for each in running}
    return [
        RentedInstance(
            each.id,
            each.type,
            each.zone,
            address_of(found[each.id], private),
            each.user,
            offer.price,
            offer.type.gpus,
            each.content,
        )
        for each in machines
    ]


def _check_money(name: str, money: float | None, nodes: int, price: float | None) -> None:
    if money is None:
        return
    if price is None:
        raise UsageError("AWS gives no price now, so --max-cost cannot be kept: try again later.")
    if not price or 3600 * money / (nodes * price) >= WORTH_IT:
        return
    left = f"{format_dollars(money)} are left" if money > 0 else "nothing is left"
    enough = max(1, round(10 * nodes * price))
    raise UsageError(
        f"{left} of --max-cost, which pays the disks of stopped machines, too: give it a new "
        f"limit, as with `%sky start {name} --max-cost {enough}`, or end it with `%sky "
        f"down {name}`."
    )


def _check_price(settings: Settings, name: str, nodes: int, price: float | None) -> None:
    if settings.max_price is None or price is None:
        return
    if nodes * price <= settings.max_price + ROUNDING:
        return
    total = nodes * price
    raise UsageError(
        f"{nodes} nodes cost {format_sufficient(total)} an hour now, more than --max-price "
        f"{settings.max_price:g}: accept it, as with `%sky start {name} --max-price "
        f"{as_limit(total)}`."
    )
