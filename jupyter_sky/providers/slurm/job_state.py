"""The state of a job: Slurm's names, why it is waiting, and permanent obstacles."""

from __future__ import annotations

import re
from dataclasses import dataclass

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_count

GONE = "GONE"
"""The state of what Slurm knows nothing of any more."""

SUSPENDED = "SUSPENDED"
"""The state of a job whose processes stand still, for example while others have its nodes."""

_ENDED = {GONE, "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL"}
_ENDED |= {"OUT_OF_MEMORY", "PREEMPTED", "REVOKED", "TIMEOUT"}

PRIORITY = "Priority"
"""The reason of jobs that wait for others."""

RESOURCES = "Resources"
"""The reason of jobs that are the next to start, once there are nodes for them."""

_REASONS = {
    RESOURCES: "it waits for nodes to become free",
    PRIORITY: "others are before it",
    "None": "it was not looked at yet",
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

# Such as QOSMaxWallDurationPerJobLimit, AssocGrpNodeLimit, QOSMaxGRESPerUser and AssocMaxJobsLimit.
_LIMIT = re.compile(
    r"(?P<whose>QOS|Assoc)?(?P<kind>Grp|Max)(?P<of>\w+?)(?P<per>Per(?:Job|User|Account|Node))?(?:Limit)?"
)
_OF = {
    "Node": ("nodes", "type fewer `--nodes`"),
    "Wall": ("time", "type a shorter `--time`"),
    "WallDuration": ("time", "type a shorter `--time`"),
    "GRES": ("GPUs", "ask for fewer of them"),
    "CPU": ("processors", "ask for fewer of them"),
    "Mem": ("memory", "ask for less"),
    "Memory": ("memory", "ask for less"),
    "Jobs": ("jobs", "wait for the end of one"),
    "SubmitJobs": ("jobs in the queue", "wait for the end of one"),
    "SubmitJob": ("jobs in the queue", "wait for the end of one"),
}
_OFFERS = "`%sky offers --provider slurm`"

_REFUSED = {
    "Invalid account": "name one of yours with `--account`",
    "Invalid qos": "name one of yours with `--qos`",
    "Invalid partition": f"{_OFFERS} shows those that there are",
    "Invalid feature": "type another `--constraint`: `sinfo --format=%f` lists them",
    "Invalid generic resource": f"{_OFFERS} shows what nodes have",
    "node configuration is not available": f"{_OFFERS} shows what nodes have",
    "Requested time limit is invalid": f"type another `--time`: {_OFFERS} shows what is allowed",
}
"""What to do where Slurm refuses a job in these words."""


@dataclass(frozen=True)
class JobState:
    """The state of a job in the queue.

    Attributes
    ----------
    state
        Slurm's name of the state, like ``"PENDING"``.
    reason
        Slurm's name of the reason for that state.
    start
        When it is expected to start, or has started; empty if that is not known.
    partition
        Where it waits or runs; several, separated by commas, until one is chosen.
    """

    state: str
    reason: str = ""
    start: str = ""
    partition: str = ""

    @property
    def is_ending(self) -> bool:
        """Whether Slurm is ending it or has ended it."""
        return self.has_ended or self.state == "COMPLETING"

    @property
    def has_ended(self) -> bool:
        """Whether it has ended for good."""
        return self.state in _ENDED


def check_can_start(job: str, there: JobState) -> None:
    """Refuse a job that would wait for ever.

    Raises
    ------
    UsageError
        With Slurm's reason, and what to type.
    """
    advice = _NEVER.get(there.reason)
    limit = _LIMIT.fullmatch(there.reason)
    if not advice and limit and limit["per"] in ("PerJob", "PerNode"):
        advice = _too_much(limit)
    if there.state == "PENDING" and advice:
        raise UsageError(f"job {job} would wait for ever ({there.reason}): {advice}.")


def refusal_in_words(said: str) -> str:
    """Return advice about a refused job; empty if Slurm's message is best."""
    for words, advice in _REFUSED.items():
        if words in said:
            return advice
    limits = map(_LIMIT.fullmatch, re.findall(r"\b(?:QOS|Assoc)(?:Grp|Max)\w+", said))
    return next((_too_much(each) for each in limits if each), "")


def _too_much(limit: re.Match[str]) -> str:
    """Explain a limit that a job exceeds, with advice."""
    what, advice = _OF.get(limit["of"], (limit["of"], "ask for less"))
    per = {"PerJob": " for a job", "PerNode": " for a node"}.get(limit["per"], "")
    return f"{_whose(limit)} allows no more {what}{per}: {advice}"


def _whose(limit: re.Match[str]) -> str:
    return {"QOS": "your QOS", "Assoc": "your account"}.get(limit["whose"], "your account or QOS")


def _reason_in_words(reason: str) -> str:
    if known := _REASONS.get(reason):
        return known
    limit = _LIMIT.fullmatch(reason)
    if limit is None:
        return reason
    what, _ = _OF.get(limit["of"], (limit["of"], ""))
    if limit["kind"] == "Grp":
        return f"{_whose(limit)} has all the {what} in use that it may, or this asks for more"
    return f"you have all the {what} that {_whose(limit)} allows you, or this asks for more"


def in_words(job: str, there: JobState, ahead: int = 0, share: str = "") -> str:
    """Describe the state of a job for the user.

    Parameters
    ----------
    ahead
        How many jobs of its partition are ahead of it, as far as Slurm shows them.
    share
        Which of the nodes that it needs the cluster has itself, in words.
    """
    if there.state != "PENDING":
        return f"job {job} is {there.state.lower()}: starting its nodes"
    reason = _reason_in_words(there.reason)
    if there.reason == PRIORITY and ahead:
        are = "is" if ahead == 1 else "are"
        reason = f"{format_count(ahead, 'job')} of {there.partition} {are} before it"
    if there.reason == RESOURCES and share:
        reason += f" ({share})"
    expected = f", expected to start at {there.start.replace('T', ' ')}" if there.start else ""
    return f"job {job} is pending: {reason}{expected}"
