"""Why a job waits, in words, and which of Slurm's reasons do not pass by themselves."""

from __future__ import annotations

import re

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
    "JobHeldUser": "you have held it: `scontrol release` lets it go on",
    "JobHeldAdmin": "who runs the cluster has held it",
}
"""Slurm's reasons in words; others are shown as they are."""

_NEVER = {
    "PartitionTimeLimit": "its partition allows less time: type a shorter `--time`",
    "PartitionNodeLimit": "its partition has not as many nodes: type fewer `--nodes`",
    "BadConstraints": "no node has what it asks for: see `%sky offers --provider slurm`",
    "InvalidAccount": "its account is not one of yours: name one with `--account`",
    "InvalidQOS": "its QOS is not one of yours: name one with `--qos`",
    "PartitionConfig": "its partition has no such nodes: see `%sky offers --provider slurm`",
    "DependencyNeverSatisfied": "what it depends on has failed: leave out `--dependency`",
}
"""Slurm's reasons that do not pass by themselves, and what to do."""

_PER_JOB = re.compile(r"Max\w+PerJob")  # as in QOSMaxWallDurationPerJobLimit


def check_can_start(job: str, there: JobState) -> None:
    """Refuse a job that would wait for ever.

    Raises
    ------
    UsageError
        With Slurm's reason, and what to type.
    """
    advice = _NEVER.get(there.reason)
    if not advice and _PER_JOB.search(there.reason):
        advice = "your account or QOS allows a job less: ask for less"
    if there.state == "PENDING" and advice:
        raise UsageError(f"job {job} would wait for ever ({there.reason}): {advice}.")


def in_words(job: str, there: JobState) -> str:
    """Return what the queue says of a job, for the user."""
    if there.state != "PENDING":
        return f"job {job} is {there.state.lower()}: starting its nodes"
    reason = _REASONS.get(there.reason, there.reason)
    expected = f", expected to start at {there.start.replace('T', ' ')}" if there.start else ""
    return f"job {job} is pending: {reason}{expected}"
