"""The tags on all that is rented, by which it is found again whatever else is lost."""

from __future__ import annotations

import getpass
import socket
import time
from collections.abc import Mapping
from typing import Any

from jupyter_sky.providers.aws.local_store import owner

ID = "jupyter-sky"
NAME = "jupyter-sky-cluster"
OWNER = "jupyter-sky-owner"
BY = "jupyter-sky-by"
REQUEST = "jupyter-sky-request"
SINCE = "jupyter-sky-since"
USER = "jupyter-sky-user"
"""Who the user is to AWS: the same from each of the user's computers."""

_LONGEST = 256  # characters of a tag


def name_of(identity: str) -> str:
    """Return what the key pair and the groups of a cluster are called."""
    return f"jupyter-sky-{identity}"


def cluster_tags(identity: str, name: str, user: str) -> dict[str, str]:
    """Return the tags of what belongs to a cluster, which a user of AWS has started."""
    return {
        USER: user[:_LONGEST],
        SINCE: f"{time.time():.0f}",
        "Name": f"jupyter-sky {name}",
        ID: identity,
        NAME: name,
        OWNER: owner(),
        BY: f"{getpass.getuser()}@{socket.gethostname()}",
    }


def tag_specification(
    kinds: str | tuple[str, ...], tags: Mapping[str, str]
) -> list[dict[str, Any]]:
    """Return the tags of new resources of these kinds, as requests take them."""
    kinds = (kinds,) if isinstance(kinds, str) else kinds
    pairs = [{"Key": key, "Value": value} for key, value in tags.items()]
    return [{"ResourceType": kind, "Tags": pairs} for kind in kinds]


def tags_of(described: Mapping[str, Any]) -> dict[str, str]:
    """Return the tags of a resource that AWS has described."""
    return {tag["Key"]: tag["Value"] for tag in described.get("Tags", ())}
