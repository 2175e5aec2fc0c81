"""The price, which is shown before anything starts; where it is high, the user is asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jupyter_sky.errors import Declined, UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.transport import event_loop

_ROUNDING = 1e-9  # three times 0.2 is more than 0.6 to a computer


def confirm_price(
    nodes: int,
    choice: Sequence[InstanceOffer],
    max_price: float | None,
    ask_above: float,
    report: Callable[[str], None],
) -> None:
    """Report what a choice costs, and return if the user agrees to it.

    Parameters
    ----------
    choice
        The offers that may be taken, the best first.
    max_price
        Dollars an hour for all nodes that the user has agreed to already.
    ask_above
        Dollars an hour up to which nobody is asked.

    Raises
    ------
    UsageError
        When the user does not, or there is nobody to ask.
    """
    what, cost, most = _described(nodes, choice)
    report(f"{what} {cost}")
    if max_price is not None or most <= ask_above:
        return
    otherwise = "add `--max-price` with the dollars an hour that you accept"
    try:
        answer = event_loop.call_in_waiting_thread(input, f"Start {what} {cost}? [y/N] ")
    except (event_loop.NoWaitingThread, EOFError, NotImplementedError):
        raise UsageError(
            f"{what} {cost} is more than ${ask_above:g}, and there is nobody to ask: {otherwise}."
        ) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise Declined(f"nothing was started; to start without a question, {otherwise}.")


def check_max_price(max_price: float, nodes: int, before: int, offer: InstanceOffer) -> None:
    """Refuse that a cluster grows beyond the dollars an hour that the user has agreed to.

    Parameters
    ----------
    nodes, before
        Number of nodes that it shall have, and that it has.
    offer
        What each of them costs from now on.
    """
    if offer.price is None:
        raise UsageError(
            f"AWS gives no price for {offer.type.name} there now, so --max-price cannot be kept: "
            f"try later, or start a new cluster without it."
        )
    total = nodes * offer.price
    if total <= max_price + _ROUNDING:
        return
    fitting = int((max_price + _ROUNDING) / offer.price)
    fewer = f"type `%sky scale {fitting}`, or " if fitting > before else ""
    raise UsageError(
        f"{nodes} nodes cost {format_dollars(total)} an hour, more than --max-price {max_price:g}: "
        f"{fewer}start a new cluster with a higher one."
    )


def _described(nodes: int, choice: Sequence[InstanceOffer]) -> tuple[str, str, float]:
    """Return what is started, what that costs, both in words, and the most it may cost an hour."""
    first = choice[0]
    what = f"{nodes} × {first.type.name}{' spot' if first.spot else ''}"
    if first.price is None:
        return what, "at an unknown price", float("inf")
    known = [price for offer in choice for price in offer.prices.values() if price is not None]
    cost, most = f"for {format_dollars(nodes * first.price)} an hour", nodes * max(known)
    if most > nodes * first.price:
        cost += f" (at most {format_dollars(most)}, if another type is taken)"
    return what, cost, most
