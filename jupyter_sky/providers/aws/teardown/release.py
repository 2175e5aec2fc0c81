"""Releases everything that a cluster has rented.

This is the one thing that must not fail half-way. Instances with known ids are ended first, before
searching for others; each step is tried whatever became of the others, and only resources that were
verified to be gone count as gone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from jupyter_sky.providers.aws import rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2.ending import end_instances, is_gone, still_unknown
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.ec2.user_data import FIRST_SIGN_WITHIN
from jupyter_sky.providers.aws.errors import UNREACHABLE, AWSError, explain_errors
from jupyter_sky.providers.aws.tags import REQUEST, name_of
from jupyter_sky.providers.aws.teardown.resources import (
    COSTLY,
    INSTANCES,
    EC2Resources,
    look,
)
from jupyter_sky.providers.progress import say
from jupyter_sky.providers.sessions import mfa

GONE_WITHIN = 900.0
"""Seconds for instances to be terminated; large ones with GPUs take minutes."""

_FIRST_PAUSE = 0.2
_LONGEST_PAUSE = 15.0
_PATIENCE = 4  # refusals, each after several attempts
# Refusals that end once a dependent resource is gone.
_LATER = ("DependencyViolation", "InvalidPlacementGroup.InUse", "VolumeInUse", "IncorrectState")
_ENDS = f"; what runs without an agent ends by itself within {FIRST_SIGN_WITHIN / 60:.0f} minutes"
_EXPECTING = "waiting until AWS would find what it was asked for last"


@mfa.without_questions()
def release(clients: Clients, identity: str, report: Callable[[str], None]) -> None:
    """Release everything that a cluster has, and wait until it is verified to be gone.

    Raises
    ------
    AWSError
        If something may still be there, with what it is and what to do about it.
    """
    rented.check_account(identity, clients)
    work, patience = _Release(clients, identity, report), _Patience()
    while not work.attempt():
        # Wait for what is ending, even if something else was refused.
        if patience.is_over(bool(work.troubles) and not work.goes_on):
            raise _may_be_left(work.left, work.troubles)
        patience.wait()
    keys_of(identity).remove()
    rented.forget(identity)


@mfa.without_questions()
def terminate(clients: Clients, identity: str, instances: Sequence[str], request: str = "") -> None:
    """Terminate some of a cluster's instances, and wait until they verifiably cost nothing.

    They may still shut down then, for which large ones take minutes: the cluster goes on meanwhile.

    Parameters
    ----------
    request
        Also terminate instances of the request with this name, even if AWS's answer to it was lost.

    Raises
    ------
    AWSError
        If one may still be there.
    """
    rented.check_account(identity, clients)
    patience = _Patience()
    # A search by the request does not find those that AWS does not know yet.
    new = rented.unacknowledged(identity) if request else []
    left = known = list(dict.fromkeys([*instances, *new]))
    while True:
        # Before searching, which may not be allowed.
        ending, troubles = end_instances(clients.ec2, identity, left)
        try:
            unknown = still_unknown(identity, ending)
            costly = _costly(clients, left, request)
            if set(costly) - set(left):
                rented.stop_expecting(identity)
            left = list(dict.fromkeys([*costly, *unknown]))
        except AWSError as error:
            left = left if troubles else ending
            troubles = troubles or ([error] if not left and request else [])
        if not (left or troubles or (request and rented.is_expecting(identity))):
            if request:  # what else was asked for may be about to come
                rented.stop_expecting(identity)
            rented.forget(identity, known)
            return
        if patience.is_over(bool(troubles)) or _is_unreachable(troubles):
            what = ", ".join(left) or "what was asked for last"
            raise AWSError(
                f"{what} in {clients.location} may still be there and cost money: "
                f"type `%sky down` to end the whole cluster{_because(troubles)}"
            )
        patience.wait()


class _Patience:
    """How long the end of something is waited for, with pauses that grow."""

    def __init__(self) -> None:
        self._deadline = time.monotonic() + GONE_WITHIN
        self._pause = _FIRST_PAUSE
        self._refusals = 0

    def is_over(self, is_refused: bool) -> bool:
        """Return whether to give up, now that AWS has refused something, or has not."""
        self._refusals += is_refused
        return self._refusals == _PATIENCE or time.monotonic() > self._deadline

    def wait(self) -> None:
        """Wait before the next attempt."""
        time.sleep(self._pause)
        self._pause = min(2 * self._pause, _LONGEST_PAUSE)


class _Release:
    """Attempts to release a cluster, each of which does all that is possible by then.

    Attributes
    ----------
    left
        What may be left after the last one, in words.
    troubles
        What AWS has refused, or does not tell.
    goes_on
        Whether instances are ending, and none was refused.
    """

    def __init__(self, clients: Clients, identity: str, report: Callable[[str], None]) -> None:
        self.left = ""
        self.troubles: list[AWSError] = []
        self.goes_on = False
        self._clients = clients
        self._identity = identity
        self._report = report
        self._told = ""
        # Instances that may be there, whether or not a search finds them.
        self._known = rented.instances(identity)

    def attempt(self) -> bool:
        """Release what can be released now; return whether all is verified to be gone.

        Raises
        ------
        AWSError
            If AWS cannot be reached.
        """
        ec2, identity = self._clients.ec2, self._identity
        # Terminate known ones again while their state cannot be queried: the answer has it.
        ending, troubles = end_instances(ec2, identity, self._known)
        found, unseen = ([], {}) if _is_unreachable(troubles) else look(self._clients, identity)
        resources = found[0] if found else EC2Resources(identity, self._clients.region)
        left = f"{resources}" if found else _unseen_name(self._clients, identity, ending)
        ends = _ENDS if ending or resources.instances else ""
        if _is_unreachable(lost := [*troubles, *unseen.values()]):
            raise _may_be_left(left + ends, lost)
        more = [each for each in resources.instances if each not in self._known]
        if more:
            rented.stop_expecting(identity)
        is_expecting = rented.is_expecting(identity)
        ending_more, trouble_more = end_instances(ec2, identity, more)
        self.goes_on = bool(ending or ending_more) and not (troubles or trouble_more)
        troubles += trouble_more
        if INSTANCES not in unseen:
            self._known = still_unknown(identity, ending)
        elif not troubles:
            self._known = ending
        step = _Step(ec2)
        resources = _with_unseen(resources, unseen)
        step.release_early(resources)
        if not resources.instances and not self._known and not is_expecting:
            step.release_rest(resources)
        troubles += step.refused
        troubles += [error for kind, error in unseen.items() if kind in _SEEN_ONLY]
        if is_expecting and not more:
            self._tell(_EXPECTING)
        elif found:
            self._tell(f"waiting until it is gone: {left}")
        self.left, self.troubles = left + ends, troubles
        return not (found or self._known or step.waits or troubles or is_expecting)

    def _tell(self, text: str) -> None:
        if text != self._told:
            say(self._report, text)
            self._told = text


# Kinds of which there may be unrecorded resources. The others are released by name or id if they
# cannot be searched.
_SEEN_ONLY = (INSTANCES, "spot_requests", "volumes")


def _with_unseen(resources: EC2Resources, unseen: Mapping[str, AWSError]) -> EC2Resources:
    """Add resources that cannot be searched but are known."""
    name = name_of(resources.id)
    if "keys" in unseen:
        resources.keys = [name]
    if "placements" in unseen:
        resources.placements = [name]
    if "groups" in unseen:
        resources.groups = rented.groups(resources.id)
    return resources


def _unseen_name(clients: Clients, identity: str, instances: Sequence[str]) -> str:
    """Return what is known of a cluster that cannot be looked for."""
    has = f"{', '.join(instances)} of " if instances else ""
    return f"{has}cluster {identity} in {clients.region}"


class _Step:
    """Attempts that are made independently of each other.

    Attributes
    ----------
    refused
        Refusals that may be permanent.
    waits
        Whether something can only be released later, once its dependents are gone.
    """

    def __init__(self, ec2: Any) -> None:
        self._ec2 = ec2
        self.refused: list[AWSError] = []
        self.waits = False

    def release_early(self, resources: EC2Resources) -> None:
        """Release what need not wait for the end of instances."""
        if resources.spot_requests:
            ids = resources.spot_requests
            self._attempt(self._ec2.cancel_spot_instance_requests, SpotInstanceRequestIds=ids)
        for name in resources.keys:
            self._attempt(self._ec2.delete_key_pair, KeyName=name)

    def release_rest(self, resources: EC2Resources) -> None:
        """Release what instances use, once they have ended."""
        for name in resources.volumes:
            self._attempt(self._ec2.delete_volume, VolumeId=name)
        for name in resources.groups:
            self._attempt(self._ec2.delete_security_group, GroupId=name)
        for name in resources.placements:
            self._attempt(self._ec2.delete_placement_group, GroupName=name)

    def _attempt(self, function: Callable[..., Any], **arguments: Any) -> None:
        try:
            with explain_errors():
                function(**arguments)
        except AWSError as error:
            if error.code in _LATER:
                self.waits = True
            elif not is_gone(error):
                self.refused.append(error)


def _costly(clients: Clients, ids: Sequence[str], request: str) -> list[str]:
    """Return which of some instances cost something, including those made by a request."""
    wanted: list[dict[str, Any]] = []
    if ids:
        wanted.append({"Name": "instance-id", "Values": list(ids)})
    if request:
        wanted.append({"Name": f"tag:{REQUEST}", "Values": [request]})
    costly = {"Name": "instance-state-name", "Values": list(COSTLY)}
    found: list[str] = []
    with explain_errors():
        for each in wanted:
            pages = clients.ec2.get_paginator("describe_instances").paginate(Filters=[each, costly])
            found += pages.search("Reservations[].Instances[].InstanceId")
    return list(dict.fromkeys(found))


def _may_be_left(left: str, troubles: Sequence[AWSError]) -> AWSError:
    return AWSError(
        f"something may still be there and cost money ({left}), type `%sky gc` to try again: "
        f"{troubles[0] if troubles else 'it takes very long.'}"
    )


def _is_unreachable(troubles: Sequence[AWSError]) -> bool:
    """Return whether AWS was not reached in several attempts, which further ones do not change."""
    return any(each.code == UNREACHABLE for each in troubles)


def _because(troubles: Sequence[AWSError]) -> str:
    return f" ({str(troubles[0]).rstrip('.')})." if troubles else "."
