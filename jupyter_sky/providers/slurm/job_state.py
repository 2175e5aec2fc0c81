"""The state of a job: Slurm's names, why it waits in words, and what does not pass by itself."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count

GONE = "GONE"
"""The state of what Slurm knows nothing of any more."""

_ENDED = {GONE, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}

PRIORITY = "Priority"
"""The reason of jobs that wait for others."""

_REASONS = {
    "Resources": "it waits for nodes to become free",
    PRIORITY: "others are before it",
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
    "PartitionConfig": "its partition has no such nodes, or allows less time: see "
    "`%sky offers --provider slurm`",
    "DependencyNeverSatisfied": "what it depends on has failed: leave out `--dependency`",
}
"""Slurm's reasons that do not pass by themselves, and what to do."""

_PER_JOB = re.compile(r"Max\w+PerJob")  # as in QOSMaxWallDurationPerJobLimit


@dataclass(frozen=True)
class JobState:
    """What the queue says of a job.

    Attributes
    ----------
    state
        Slurm's name of it, like ``"PENDING"``.
    reason
        Why it is in that state, as Slurm calls it.
    start
        When it is expected to start, or has started; empty if that is not known.
    partition
        Where it waits or runs; several with commas between them until one is chosen.
    """

    state: str
    reason: str = ""
    start: str = ""
    partition: str = ""

    @property
    def is_ending(self) -> bool:
        """Whether Slurm ends it now, or has ended it."""
        return self.has_ended or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        """Whether it runs no more, and will not."""
        return self.state in _ENDED


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


def in_words(job: str, there: JobState, ahead: int = 0) -> str:
    """Return what the queue says of a job, for the user.

    Parameters
    ----------
    ahead
        How many jobs of its partition are before it, as far as Slurm shows them.
    """
    if there.state != "PENDING":
        return f"job {job} is {there.state.lower()}: starting its nodes"
    reason = _REASONS.get(there.reason, there.reason)
    if there.reason == PRIORITY and ahead:
        are = "is" if ahead == 1 else "are"
        reason = f"{format_count(ahead, 'job')} of {there.partition} {are} before it"
    expected = f", expected to start at {there.start.replace('T', ' ')}" if there.start else ""
    return f"job {job} is pending: {reason}{expected}"
