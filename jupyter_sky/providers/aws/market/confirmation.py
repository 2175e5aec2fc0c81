"""The price, said before anything starts; and the person asked, where it is high."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_dollars
from jupyter_sky.providers.aws.market.selection import Offer
from jupyter_sky.transport import event_loop

_ROUNDING = 1e-9  # three times 0.2 is more than 0.6 to a computer


def agree(
    nodes: int,
    choice: Sequence[Offer],
    max_price: float | None,
    ask_above: float,
    say: Callable[[str], None],
) -> None:
    """Say what a choice costs, and return if the person wants it.

    Parameters
    ----------
    choice
        The types that may be taken, the best first.
    max_price
        Dollars an hour for all nodes that the person has agreed to already.
    ask_above
        Dollars an hour up to which nobody is asked.

    Raises
    ------
    UsageError
        When the person does not, or there is nobody to ask.
    """
    what, cost, most = _described(nodes, choice)
    say(f"{what} {cost}")
    if max_price is not None or most <= ask_above:
        return
    otherwise = "say `--max-price` with the dollars an hour that you agree to"
    try:
        answer = event_loop.call_in_waiting_thread(input, f"Start {what} {cost}? [y/N] ")
    except (event_loop.NoWaitingThread, EOFError, NotImplementedError):
        raise UsageError(
            f"{what} {cost} is more than ${ask_above:g}, and there is nobody to ask: {otherwise}."
        ) from None
    if answer.strip().lower() not in ("y", "yes"):
        raise UsageError(f"nothing was started; to start without a question, {otherwise}.")


def stay_below(max_price: float, nodes: int, before: int, offer: Offer) -> None:
    """Refuse that a cluster grows beyond the dollars an hour that the person has agreed to.

    Parameters
    ----------
    nodes, before
        How many it shall have, and how many there are.
    offer
        What each of them costs from now on.
    """
    if offer.price is None:
        raise UsageError(
            f"AWS does not tell what {offer.type.name} costs there now, so --max-price cannot "
            "hold: try later, or start the cluster anew without it."
        )
    total = nodes * offer.price
    if total <= max_price + _ROUNDING:
        return
    fitting = int((max_price + _ROUNDING) / offer.price)
    fewer = f"type `%sky scale {fitting}`, or " if fitting > before else ""
    raise UsageError(
        f"{nodes} nodes cost {format_dollars(total)} an hour, more than --max-price {max_price:g}: "
        f"{fewer}start the cluster anew with a higher one."
    )


def _described(nodes: int, choice: Sequence[Offer]) -> tuple[str, str, float]:
    """Return what is started, what that costs, both in words, and the most it may cost an hour."""
    first = choice[0]
    what = f"{nodes} × {first.type.name}{' spot' if first.spot else ''}"
    if first.price is None:
        return what, "at a price that AWS does not tell", float("inf")
    known = [price for offer in choice for price in offer.prices.values() if price is not None]
    cost, most = f"for {format_dollars(nodes * first.price)} an hour", nodes * max(known)
    if most > nodes * first.price:
        cost += f" (at most {format_dollars(most)}, if another type has to do)"
    return what, cost, most
