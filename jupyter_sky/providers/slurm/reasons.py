"""Why a job waits, in words, and which of Slurm's reasons do not pass by themselves."""

from __future__ import annotations

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.slurm.commands import JobState

_REASONS = {
    "Resources": "it waits for nodes to become free",
    "Priority": "others are before it",
    "None": "it was not looked at yet",
    "QOSMaxJobsPerUserLimit": "you have as many jobs as your QOS allows",
    "AssocMaxJobsLimit": "you have as many jobs as your account allows",
    "PartitionDown": "its partition is down",
    "ReqNodeNotAvail": "nodes that it needs are down or reserved",
}
"""Slurm's reasons in words; others are shown as they are."""

_NEVER = {
    "PartitionTimeLimit": "its partition allows less time: type a shorter `--time`",
    "PartitionNodeLimit": "its partition has not as many nodes: type fewer `--nodes`",
    "BadConstraints": "no node has what it asks for: see `%sky offers --provider slurm`",
    "InvalidAccount": "its account is not one of yours: name one with `--account`",
    "InvalidQOS": "its QOS is not one of yours: name one with `--qos`",
    "QOSMaxWallDurationPerJobLimit": "its QOS allows less time: type a shorter `--time`",
    "AssocMaxWallDurationPerJobLimit": "your account allows less time: type a shorter `--time`",
    "AssocMaxNodePerJobLimit": "your account allows fewer nodes: type fewer `--nodes`",
    "QOSMaxNodePerUserLimit": "its QOS allows fewer nodes: type fewer `--nodes`",
}
"""Slurm's reasons that do not pass by themselves, and what to do."""


def check_can_start(job: str, there: JobState) -> None:
    """Refuse a job that would wait for ever.

    Raises
    ------
    UsageError
        With Slurm's reason, and what to type.
    """
    if there.state == "PENDING" and (advice := _NEVER.get(there.reason)):
        raise UsageError(f"job {job} would wait for ever ({there.reason}): {advice}.")


def in_words(job: str, there: JobState) -> str:
    """Return what the queue says of a job, for the user."""
    if there.state != "PENDING":
        return f"job {job} is {there.state.lower()}: starting its nodes"
    reason = _REASONS.get(there.reason, there.reason)
    expected = f", expected to start at {there.start.replace('T', ' ')}" if there.start else ""
    return f"job {job} is pending: {reason}{expected}"
