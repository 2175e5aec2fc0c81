"""Records of each cluster's rented resources, on the user's disk, by id.

Searching by tags needs permissions that may be missing, and answers that may not come. Ids are
recorded here as soon as AWS returns them, and are ended first, whether or not a search succeeds.

AWS's servers learn of a new instance one after the other, and answer that it does not exist until
then. So it is also recorded which instances AWS has described: only those are gone if AWS does not
know them, and new ones are not until some time has passed.

Nor does a search find what was asked for a moment ago if the answer is lost, or the process is
killed before it comes: what was asked for is recorded too, before it is, and nothing is taken for
gone until AWS would find it.

Another account does not know them either, and a user may have several: the account is recorded,
too, and nothing is taken for gone because another one does not have it.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError
from jupyter_sky.providers.aws.local_store import folder

KNOWN_WITHIN = 60.0
"""Seconds after which AWS knows what it has made, whichever of its servers is asked."""

# How lines begin that are not the id of something rented.
_ASKED = "asked:"
_ANSWERED = "answered:"
_DESCRIBED = "described:"
_ACCOUNT = "account:"
_GONE = "gone:"


@dataclass(frozen=True)
class _Record:
    """The record of a cluster.

    Attributes
    ----------
    ids
        The ids of instances and security groups that it has had, but for those that are gone.
    described
        Those instances that AWS has described.
    unanswered
        The tokens of requests of which nothing is known.
    accounts
        The numbers of the accounts that it was rented in.
    is_new
        Whether it has changed so recently that AWS may not know all of it.
    """

    ids: list[str]
    described: list[str]
    unanswered: list[str]
    accounts: list[str]
    is_new: bool

    @property
    def instances(self) -> list[str]:
        """The ids of instances."""
        return [each for each in self.ids if each.startswith("i-")]


def note(identity: str, ids: Iterable[str]) -> None:
    """Add ids of instances and security groups to the record of a cluster."""
    path = _path(identity)
    path.parent.mkdir(mode=0o700, exist_ok=True)
    # A single write, which is atomic.
    with path.open("a") as file:
        file.write("".join(f"{each}\n" for each in ids))


def note_account(identity: str, clients: Clients) -> None:
    """Record the account in which something is about to be rented for a cluster."""
    if clients.number:
        note(identity, [f"{_ACCOUNT}{clients.number}"])


def check_account(identity: str, clients: Clients) -> None:
    """Refuse to ask another account than that of a cluster what has become of it.

    Raises
    ------
    AWSError
        If the credentials belong to another one.
    """
    known = _read(identity).accounts
    if known and clients.number and clients.number not in known:
        raise AWSError(
            f"the cluster is in the AWS account {known[0]}, and your credentials are of "
            f"{clients.number}: use those of {known[0]}, as with `%env AWS_PROFILE=NAME`."
        )


def acknowledge(identity: str, ids: Iterable[str]) -> None:
    """Record that AWS has described instances."""
    new = {*ids}.intersection(unacknowledged(identity))
    # A full disk must not keep instances from being ended.
    with contextlib.suppress(OSError):
        if new:
            note(identity, (f"{_DESCRIBED}{each}" for each in new))


def unacknowledged(identity: str) -> list[str]:
    """Return the instances that are so new that AWS may not know them yet."""
    record = _read(identity)
    return [each for each in record.instances if record.is_new and each not in record.described]


def note_request(identity: str, token: str) -> None:
    """Record that instances are asked for now, by the token of the request."""
    note(identity, [f"{_ASKED}{token}"])


def note_answer(identity: str, token: str, ids: Iterable[str] = ()) -> None:
    """Record what has come of a request: these instances, or none."""
    note(identity, [*ids, f"{_ANSWERED}{token}"])


def stop_expecting(identity: str) -> None:
    """Record that what was asked for has been found, or would have been by now."""
    with contextlib.suppress(OSError):
        for token in _read(identity).unanswered:
            note_answer(identity, token)


def is_expecting(identity: str) -> bool:
    """Return whether AWS may have made instances a moment ago of which nobody has heard."""
    record = _read(identity)
    return record.is_new and bool(record.unanswered)


def instances(identity: str) -> list[str]:
    """Return the ids of instances that a cluster has had."""
    return _read(identity).instances


def groups(identity: str) -> list[str]:
    """Return the ids of security groups that a cluster has had."""
    return [each for each in _read(identity).ids if each.startswith("sg-")]


def forget(identity: str, ids: Iterable[str] | None = None) -> None:
    """Forget ids that are gone, or all of a cluster."""
    if ids is None:
        _path(identity).unlink(missing_ok=True)
        return
    gone = {*ids}.intersection(_read(identity).ids)
    # Where the disk is full, AWS says the same the next time.
    with contextlib.suppress(OSError):
        if gone:
            # Added to what is there: another process may add something at the same time.
            note(identity, (f"{_GONE}{each}" for each in sorted(gone)))


def _read(identity: str) -> _Record:
    path, lines, changed = _path(identity), [], -math.inf
    with contextlib.suppress(FileNotFoundError):
        changed = path.stat().st_mtime
        lines = list(dict.fromkeys(path.read_text().split()))

    def of(kind: str) -> list[str]:
        return [each.removeprefix(kind) for each in lines if each.startswith(kind)]

    answered, gone = of(_ANSWERED), of(_GONE)
    return _Record(
        ids=[each for each in lines if ":" not in each and each not in gone],
        described=of(_DESCRIBED),
        unanswered=[token for token in of(_ASKED) if token not in answered],
        accounts=of(_ACCOUNT),
        # The clock of the disk's server may be ahead.
        is_new=abs(time.time() - changed) < KNOWN_WITHIN,
    )


def _path(identity: str) -> Path:
    return folder() / "rented" / identity
