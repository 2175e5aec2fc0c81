"""Stopping instances so that their disks stay, starting them again, and what a power-off means."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws import retries
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2.ending import OF_ONE, is_gone
from jupyter_sky.providers.aws.ec2.launch import QUOTAS, TRY_ELSEWHERE, describe_instances
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.sessions import mfa

STOPPED_WITHIN = 600.0
"""Seconds for an instance to be stopped; AWS cuts the power of one that takes minutes."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 5.0
_NO_LONGER = ("shutting-down", "terminated")


@mfa.without_questions()
def stop(clients: Clients, ids: Sequence[str], autostop: bool) -> None:
    """Stop instances; when this returns, they cost nothing any more but for their disks.

    Before that, a power-off is made one that keeps the disk: whatever becomes of this process, and
    of the instances when they are started again, their disks stay until they are terminated.

    Parameters
    ----------
    autostop
        Whether a power-off keeps the disks anyway.

    Raises
    ------
    AWSError
        When one may run on; a power-off is what it was before then, as far as AWS allows it.
    """
    try:
        on_power_off(clients, ids, "stop")
        _stop(clients.ec2, ids)
    except AWSError as error:
        # Where the answer is lost, they may be about to stop.
        if not autostop and not retries.may_be_done(error.code):
            for each in ids:
                with contextlib.suppress(AWSError):
                    on_power_off(clients, [each], "terminate")
        raise


@mfa.without_questions()
def stop_again(clients: Clients, ids: Sequence[str]) -> None:
    """Stop instances whose start has failed; they stop by themselves where AWS does not do it.

    Their disks stay when they power off, whatever was said of that before the start failed. Those
    that are gone are passed over.

    Raises
    ------
    AWSError
        When one may run on for some minutes.
    """
    for each in ids:
        with contextlib.suppress(AWSError):
            on_power_off(clients, [each], "stop")
    if troubles := _stop_those_there(clients, ids):
        running, error = ", ".join(troubles), next(iter(troubles.values()))
        raise AWSError(
            f"{running} may run for 15 minutes at most, and stop by themselves then: {error}"
        )


def on_power_off(clients: Clients, ids: Sequence[str], what: str) -> None:
    """Say what becomes of instances that power off by themselves.

    Parameters
    ----------
    what
        ``"stop"``, which keeps their disks, or ``"terminate"``.
    """
    for each in ids:
        with explain_errors():
            clients.ec2.modify_instance_attribute(
                InstanceId=each, InstanceInitiatedShutdownBehavior={"Value": what}
            )


def start(clients: Clients, ids: Sequence[str], quota: str) -> None:
    """Start instances that are stopped, all of them or none as far as AWS says.

    Parameters
    ----------
    quota
        The name of what limits how many of them the account may have.

    Raises
    ------
    SkyError
        When AWS has no room for them now, or the account may have no more.
    """
    try:
        with explain_errors():
            clients.ec2.start_instances(InstanceIds=list(ids))
    except AWSError as error:
        if error.code in QUOTAS:
            raise SkyError(
                f"the account may have no more such instances ({error.message.rstrip('.')}): end "
                f"others, or ask for a higher `{quota}` at Service Quotas in the AWS console."
            ) from None
        if error.code in TRY_ELSEWHERE:
            raise SkyError(
                f"AWS has no capacity for its instances in their zone now "
                f"({error.message.rstrip('.')}): try again later."
            ) from None
        raise


def wait_until_stopped(
    clients: Clients, ids: Sequence[str], report: Callable[[str], None]
) -> dict[str, dict[str, Any]]:
    """Wait until no instance is about to stop; return what AWS says of each, by its id.

    Raises
    ------
    SkyError
        When one is gone, or it takes very long.
    """
    deadline, pause = time.monotonic() + STOPPED_WITHIN, _FIRST_PAUSE
    while True:
        found = {each["InstanceId"]: each for each in describe_instances(clients, ids)}
        gone = [each for each in ids if _state(found.get(each)) in _NO_LONGER]
        if gone:
            raise SkyError(
                f"{', '.join(gone)} of it has ended, and its disk with it: end the rest with "
                "`%sky down`, and start a new cluster."
            )
        stopping = [each for each in ids if _state(found[each]) == "stopping"]
        if not stopping:
            return found
        if time.monotonic() > deadline:
            raise SkyError(f"AWS has not stopped {', '.join(stopping)} yet: try again later.")
        report("waiting until its machines have stopped")
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE)


def _stop_those_there(clients: Clients, ids: Sequence[str]) -> dict[str, AWSError]:
    """Stop those of some instances that are not gone; return the refusals by their ids."""
    try:
        _stop(clients.ec2, ids)
    except AWSError as error:
        is_of_one = is_gone(error) or error.code in OF_ONE
        if len(ids) > 1 and is_of_one:
            # For a single one, AWS stops none of them.
            refused: dict[str, AWSError] = {}
            for each in ids:
                refused |= _stop_those_there(clients, [each])
            return refused
        if not (is_of_one and _is_no_longer_there(clients, ids[0])):
            return dict.fromkeys(ids, error)
    return {}


def _is_no_longer_there(clients: Clients, name: str) -> bool:
    try:
        found = describe_instances(clients, [name])
    except AWSError:
        return False
    return _state(found[0] if found else None) in _NO_LONGER


def _stop(ec2: Any, ids: Sequence[str]) -> None:
    with explain_errors():
        ec2.stop_instances(InstanceIds=list(ids))


def _state(said: dict[str, Any] | None) -> str:
    return "terminated" if said is None else str(said["State"]["Name"])
