"""The tags on everything that is rented, by which it is found even if all else is lost."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.aws.local_store import owner

ID = "jupyter-sky"
NAME = "jupyter-sky-cluster"
OWNER = "jupyter-sky-owner"
BY = "jupyter-sky-by"
REQUEST = "jupyter-sky-request"
SINCE = "jupyter-sky-since"
KMS_KEY = "jupyter-sky-kms-key"
"""What encrypts the disks of instances: of further ones too."""
USER = "jupyter-sky-user"
"""Who the user is to AWS: the same from each of the user's computers."""

_LONGEST = 256  # characters of a tag's value
_LONGEST_KEY = 128
_MOST_OWN = 40  # AWS allows 50 in total


def name_of(identity: str) -> str:
    """Return the name of a cluster's key pair and groups."""
    return f"jupyter-sky-{identity}"


def cluster_tags(identity: str, name: str, user: str, kms_key: str | None = None) -> dict[str, str]:
    """Return the tags for resources of a cluster that was started by an AWS user."""
    return {
        **({KMS_KEY: kms_key} if kms_key else {}),
        USER: user[:_LONGEST],
        SINCE: f"{time.time():.0f}",
        "Name": f"jupyter-sky {name}",
        ID: identity,
        NAME: name,
        OWNER: owner(),
        BY: f"{getpass.getuser()}@{socket.gethostname()}",
    }


def check_tags(tags: object) -> None:
    """Refuse tags that AWS would reject, or that we use ourselves.

    Raises
    ------
    UsageError
        With the name of the tag.
    """
    if tags is None:
        return
    if not isinstance(tags, Mapping):
        raise UsageError(f"tags={tags!r}: type names and values, like tags={{'team': 'vision'}}.")
    if len(tags) > _MOST_OWN:
        raise UsageError(f"these are {len(tags)} tags: AWS takes {_MOST_OWN} beside those of ours.")
    for key, value in tags.items():
        if not isinstance(key, str) or not isinstance(value, str):
            raise UsageError(f"the tag {key!r}: {value!r} is no text: put both in quotes.")
        if not is_own(key):
            raise UsageError(
                f"the tag {key!r} cannot be yours: what is rented is found by such tags. "
                "Take another name."
            )
        if not 0 < len(key) <= _LONGEST_KEY or len(value) > _LONGEST:
            raise UsageError(
                f"the tag {key[:20]!r} is too long: AWS takes {_LONGEST_KEY} characters, and "
                f"{_LONGEST} of its value."
            )


def is_own(key: str) -> bool:
    """Return whether a tag belongs to the user, not to this package or AWS."""
    return key != "Name" and not key.lower().startswith(("aws:", ID))


def tag_specification(
    kinds: str | tuple[str, ...], tags: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the tags of new resources of these kinds, for requests."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def made_at(tags: Mapping[str, str]) -> float:
    """Return when something was made, in seconds since the epoch; 0 if its tags do not tell.

    Everybody in the account may change them.
    """
    try:
        return float(tags.get(SINCE, 0))
    except ValueError:
        return 0.0


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource that AWS has described."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
