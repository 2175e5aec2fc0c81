"""Ending instances whose ids are known, although AWS may not know all of them yet, or any more."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jupyter_sky.providers.aws import rented
from jupyter_sky.providers.aws.errors import AWSError, explain_errors

OF_ONE = (
    "IncorrectInstanceState",
    "OperationNotPermitted",
    "UnauthorizedOperation",
    "UnsupportedOperation",
)
"""Refusals that may be about one of several instances, as where it is protected from its end."""


def end_instances(ec2: Any, identity: str, ids: Sequence[str]) -> tuple[list[str], list[AWSError]]:
    """Ask AWS to end instances of a cluster; return those that are not gone yet, and refusals."""
    if not ids:
        return [], []
    try:
        with explain_errors():
            answer = ec2.terminate_instances(InstanceIds=list(ids))
    except AWSError as error:
        if is_gone(error) and len(ids) == 1:
            return still_unknown(identity, ids), []
        if len(ids) == 1 or not (is_gone(error) or error.code in OF_ONE):
            return list(ids), [error]
        # A single one that is not known or may not be ended makes AWS end none of them.
        each_alone = [end_instances(ec2, identity, [each]) for each in ids]
        return (
            [one for ending, _ in each_alone for one in ending],
            [one for _, trouble in each_alone for one in trouble],
        )
    states = {
        each["InstanceId"]: each["CurrentState"]["Name"] for each in answer["TerminatingInstances"]
    }
    rented.acknowledge(identity, states)
    return [each for each in ids if states.get(each) != "terminated"], []


def still_unknown(identity: str, ids: Sequence[str]) -> list[str]:
    """Return which of some instances are not gone although AWS does not find them."""
    new = rented.unacknowledged(identity)
    return [each for each in ids if each in new]


def is_gone(error: AWSError) -> bool:
    """Return whether AWS refused something because what it was about does not exist."""
    return "NotFound" in error.code or "Unknown" in error.code
