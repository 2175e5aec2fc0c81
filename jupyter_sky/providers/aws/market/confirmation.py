"""The price, which is shown before anything starts; where it is high, the user is asked."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from types import BuiltinFunctionType

from jupyter_sky.errors import Declined, UsageError
from jupyter_sky.formatting import format_dollars, format_duration, is_terminal
from jupyter_sky.providers.aws.market.rounding import ROUNDING, as_limit, format_sufficient
from jupyter_sky.providers.aws.market.selection import InstanceOffer
from jupyter_sky.providers.scaling import RunningCluster
from jupyter_sky.transport import event_loop


def confirm_price(
    nodes: int,
    choice: Sequence[InstanceOffer],
    max_price: float | None,
    ask_above: float,
    report: Callable[[str], None],
    account: str,
    idle_timeout: float | None = None,
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
    account
        Whose money it is, and where, in words.
    idle_timeout
        Seconds without a run after which the cluster ends itself.

    Raises
    ------
    UsageError
        When the user does not, or there is nobody to ask.
    """
    what, cost, most = described(nodes, choice)
    cost += f" {account}"
    ends = f", ends after {format_duration(idle_timeout)} without a run" if idle_timeout else ""
    report(f"{what} {cost}{ends}")
    first = choice[0]
    if first.price is None:
        # AWS itself holds what spot may cost; nobody holds what is not known of on-demand.
        if most <= ask_above or (max_price is not None and first.spot):
            return
        why, otherwise = "", "set `%config Sky.aws = {'ask_above': float('inf')}`"
    elif max_price is not None or most <= ask_above + ROUNDING:
        return
    else:
        why = f" is more than ${ask_above:g}"
        otherwise = "add `--max-price` with the dollars an hour that you accept"
    ask(f"Start {what} {cost}?", otherwise, f"{what} {cost}{why}")


def ask(question: str, otherwise: str, what: str = "") -> None:
    """Ask the user, and return if the answer is yes.

    Parameters
    ----------
    otherwise
        What to do to be asked nothing.
    what
        What the question is about, for where there is nobody to ask.

    Raises
    ------
    UsageError
        When it is no, or there is nobody to ask.
    """
    try:
        answer = event_loop.call_in_waiting_thread(_answer, f"{question} [y/N] ")
    except (event_loop.NoWaitingThread, EOFError, NotImplementedError):
        about = f"{what}, and there" if what else f"{question} There"
        raise UsageError(f"{about} is nobody to ask: {otherwise}.") from None
    if answer.strip().lower() not in ("y", "yes"):
        raise Declined(f"nothing was started; to start without a question, {otherwise}.")


def _answer(question: str) -> str:
    """Return the user's answer, also where the output of a program goes into a file."""
    # Python asks on standard output; a notebook has its own `input`.
    if isinstance(input, BuiltinFunctionType) and not is_terminal(sys.stdout):
        print(question, end="", file=sys.stderr, flush=True)
        question = ""
    return input(question)


def check_max_price(max_price: float, running: RunningCluster, offer: InstanceOffer) -> None:
    """Refuse that a cluster grows beyond the dollars an hour that the user has agreed to.

    Parameters
    ----------
    running
        The cluster, with the number of nodes that it shall have.
    offer
        What each of them costs from now on.
    """
    if offer.price is None:
        raise UsageError(
            f"AWS gives no price for {offer.type.name} there now, so --max-price cannot be kept: "
            f"try later, or start a new cluster without it."
        )
    nodes, name = running.spec.nodes, running.spec.name
    total = nodes * offer.price
    if total <= max_price + ROUNDING:
        return
    more = f"{nodes} nodes cost {format_sufficient(total)} an hour, more than --max-price"
    if running.lost:  # as the cluster is by the time that this is read
        raise UsageError(f"{more} {max_price:g}: start a new cluster with a higher one.")
    fitting = int((max_price + ROUNDING) / offer.price)
    is_growth = fitting > len(running.nodes)
    fewer = f"type `%sky scale {fitting} --cluster {name}`, or " if is_growth else ""
    raise UsageError(
        f"{more} {max_price:g}: {fewer}accept it, as with `%sky scale {nodes} --max-price "
        f"{as_limit(total)} --cluster {name}`."
    )


def described(nodes: int, choice: Sequence[InstanceOffer]) -> tuple[str, str, float]:
    """Return what is started, what that costs, both in words, and the most it may cost an hour."""
    first = choice[0]
    what = f"{nodes} × {first.type.name}{' spot' if first.spot else ''}"
    if first.reservation:
        what += f" of {first.reservation}"
    if first.is_block:
        rest = nodes * first.besides
        return what, f"for {format_dollars(rest)} an hour beside the Capacity Block", rest
    if first.price is None:
        return what, "at an unknown price", float("inf")
    known = [offer.most for offer in choice if offer.most is not None]
    cost, most = f"for {format_dollars(nodes * first.price)} an hour", nodes * max(known)
    if most > nodes * first.price:
        cost += f" (at most {format_dollars(most)}, if another type is taken)"
    if surplus := nodes * first.type.surplus:
        cost += f" (and up to {format_dollars(surplus)} for processors that are always busy)"
    return what, cost, most + surplus
