"""What clusters have at AWS, wherever it is, and what of it has ended or belongs to nobody."""

from __future__ import annotations

import calendar
import contextlib
import importlib.util
import math
import os
import re
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import local_store, rented
from jupyter_sky.providers.aws.clients import Clients, clients, clients_at
from jupyter_sky.providers.aws.ec2 import snapshots
from jupyter_sky.providers.aws.ec2.instance import ENDED, Instance
from jupyter_sky.providers.aws.ec2.key_pairs import keys_of
from jupyter_sky.providers.aws.errors import NO_CREDENTIALS, AWSError, explain_errors
from jupyter_sky.providers.aws.tags import ID
from jupyter_sky.providers.aws.teardown.resources import EC2Resources, look
from jupyter_sky.providers.cloud import CloudResources

ABANDONED_AFTER = 3600.0
"""Seconds after which what has no instance is none that is about to have some."""

_AT_ONCE = 8  # regions that are asked
_ANY_REGION = "us-east-1"  # each tells which others there are

_NOT_ENABLED = ("AuthFailure", "OptInRequired")
_RUNNING = ("pending", "running")
_STATES = (*_RUNNING, "stopping", "stopped")
_SINCE = re.compile(r"\((\d+)-(\d+)-(\d+) (\d+):(\d+):(\d+) (?:GMT|UTC)\)")


def ended_at(machines: Sequence[Instance]) -> list[float | None]:
    """Return when instances have ended, in seconds since the epoch; ``None`` where one has not.

    AWS forgets instances an hour after their end: when that was is infinite then.
    """
    said = _said(machines)
    return [
        _since(said[each.id], _STATES, math.inf) if each.id in said else math.inf
        for each in machines
    ]


def stopped_at(machines: Sequence[Instance]) -> list[float | None]:
    """Return when instances were stopped whose disks are there; ``None`` for others."""
    said = _said(machines)
    is_not = (*_RUNNING, *ENDED)
    return [
        _since(said[each.id], is_not, time.time()) if each.id in said else None for each in machines
    ]


def _said(machines: Sequence[Instance]) -> dict[str, dict[str, Any]]:
    """Return what AWS says of those instances that it knows, by their ids."""
    said: dict[str, dict[str, Any]] = {}
    for cluster, location in {(each.cluster, each.location) for each in machines}:
        ids = [each.id for each in machines if each.location == location]
        there = clients_at(location)
        rented.check_account(cluster, there)
        # A filter, unlike a list of ids, takes those that AWS does not know any more.
        wanted = [{"Name": "instance-id", "Values": ids}]
        with explain_errors():
            pages = there.ec2.get_paginator("describe_instances").paginate(Filters=wanted)
            found = pages.search("Reservations[].Instances[]")
            said |= {each["InstanceId"]: each for each in found}
    return said


def _since(said: dict[str, Any], other: Sequence[str], unknown: float) -> float | None:
    """Return since when an instance is in its state, unless that is one of these others."""
    if said["State"]["Name"] in other:
        return None
    since = _SINCE.search(said.get("StateTransitionReason", ""))
    numbers = map(int, since.groups()) if since else None
    return float(calendar.timegm((*numbers, 0, 0, 0))) if numbers else unknown


def list_resources(everywhere: bool) -> tuple[list[CloudResources], list[str]]:
    """Return what clusters have, and which locations cannot be looked at, a sentence each.

    Parameters
    ----------
    everywhere
        Whether to look at all regions of the account, also from a new registry.
    """
    found: dict[str, CloudResources] = {}
    trouble: list[str] = []
    locations = local_store.locations()
    if everywhere:
        more, trouble = _other_locations(locations)
        locations = sorted({*locations, *more})
    for location in locations:
        try:
            there = clients_at(location)
            seen, unseen = look(there)
            # Who may do nothing may not look for anything, which is one sentence.
            what = f"not everything in {location} can be looked at"
            trouble += dict.fromkeys(f"{what}: {error}" for error in unseen.values())
            user = there.user if seen else ""
            for each in seen:
                # One account may be known by several profiles.
                found.setdefault(each.id, _described(each, location, user))
        except SkyError as error:
            trouble.append(f"what is rented in {location} cannot be listed: {error}")
    return list(found.values()), trouble


def _described(each: EC2Resources, location: str, user: str) -> CloudResources:
    # Keys are made before anything else, and stay until all is gone: what has none here was started
    # elsewhere, also if this is a copy of where it was started.
    is_ours = each.owner == local_store.owner() and keys_of(each.id).folder.is_dir()
    # What runs has an agent, or ends itself within minutes: it is never for others to end.
    is_old = 0 < each.since < time.time() - ABANDONED_AFTER
    is_abandoned = bool(user) and each.user == user and not each.instances and is_old
    return CloudResources(
        id=each.id,
        name=each.name,
        location=location,
        what=each.what,
        is_ours=is_ours,
        started_by=each.started_by,
        instances=tuple(name for name in each.instances if name not in each.ending),
        is_abandoned=is_abandoned and not is_ours,
    )


def _other_locations(known: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return where clusters have something beside the known locations, and what cannot be seen."""
    if not known and not _is_configured():
        return [], []
    found = []
    accounts, trouble = _accounts(known)
    for there in accounts:
        try:
            with explain_errors():
                regions = [each["RegionName"] for each in there.ec2.describe_regions()["Regions"]]
        except AWSError as error:
            # Who has profiles alone has rented nothing without one.
            if not (known and error.code == NO_CREDENTIALS):
                trouble.append(f"other regions cannot be looked at: {error}")
            continue
        others = [there.at(region) for region in regions]
        others = [each for each in others if each.location not in known]
        with ThreadPoolExecutor(_AT_ONCE) as threads:
            for each, has_some in zip(others, threads.map(_has_tags, others), strict=True):
                if isinstance(has_some, AWSError):
                    trouble.append(f"{each.location} cannot be looked at: {has_some}")
                elif has_some:
                    found.append(each.location)
    return found, trouble


def _accounts(known: Sequence[str]) -> tuple[list[Clients], list[str]]:
    """Return clients with the usual profile and each that was used, or why the former has none."""
    found: dict[str | None, Clients] = {}
    trouble: list[str] = []
    try:
        there = _usual()
        found[there.profile] = there
    except SkyError as error:
        trouble.append(f"what is rented at AWS cannot be listed: {error}")
    for location in known:
        with contextlib.suppress(SkyError):  # which is said where the location is looked at
            there = clients_at(location)
            found.setdefault(there.profile, there)
    return [*found.values()], trouble


def _usual() -> Clients:
    try:
        return clients()
    except UsageError:  # the user may name a region in each cell alone
        return clients(_ANY_REGION)


def _has_tags(there: Clients) -> bool | AWSError:
    """Return whether anything in a region bears our tag, or why that is not known.

    It is one question for all kinds.
    """
    ours = [{"Name": "key", "Values": [ID]}]
    try:
        with explain_errors():
            pages = there.ec2.get_paginator("describe_tags").paginate(Filters=ours)
            return any(page["Tags"] for page in pages)
    except AWSError as error:
        # Nobody can have started anything in a region that is not enabled, or closed to all.
        is_closed = error.code in _NOT_ENABLED or "explicit deny" in error.message
        return False if is_closed else error


def _is_configured() -> bool:
    """Return whether AWS is used from here, as far as that can be seen without asking it."""
    if importlib.util.find_spec("boto3") is None:
        return False
    files = (
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
    )
    return bool(
        {"AWS_PROFILE", "AWS_ACCESS_KEY_ID"} & os.environ.keys()
        or any(Path(each).expanduser().is_file() for each in files)
    )


def remove_unused() -> list[str]:
    """Remove what is left of snapshots, and list those that are there and what they cost."""
    said = []
    for location in local_store.locations():
        try:
            there = clients_at(location)
            for each in snapshots.every(there):
                if not each.is_ours:
                    continue
                if each.image:
                    said.append(
                        f"kept: the snapshot {each} in {location}; "
                        f"`%sky snapshot --remove {each.name}` removes it"
                    )
                else:
                    snapshots.remove(there, each.name)
                    said.append(f"removed what was left of the snapshot {each.name}")
        except SkyError as error:
            said.append(f"the snapshots in {location} cannot be listed: {error}")
    return said
