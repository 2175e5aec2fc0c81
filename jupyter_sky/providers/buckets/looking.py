"""Checks buckets from here before machines are started."""

from __future__ import annotations

from collections.abc import Iterable

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.credentials import order_of
from jupyter_sky.providers.buckets.listing import list_one
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.transport.volumes import words
from jupyter_sky.transport.volumes.requests import VolumeOrder

_MISSING = "NoSuchBucket"


def check_there(volumes: Iterable[Volume], provider: Provider) -> None:
    """Refuse volumes that certainly cannot be made on any node.

    A bucket that does not exist does not exist for nodes, either. If nodes get the credentials of
    this notebook, they are denied what is denied here; a role of their own may allow more. Whether
    nodes can reach the bucket, they find out themselves.

    Raises
    ------
    UsageError
        If one cannot be made, with what to do.
    """
    for volume in volumes:
        order = order_of(volume, provider)
        if volume.scheme == "s3" and (trouble := _of_s3(order)):
            raise UsageError(f"--volume {volume}: {trouble}.")


def _of_s3(order: VolumeOrder) -> str:
    """Return why files cannot be listed; empty if they can, or that is not known."""
    try:
        import boto3  # noqa: F401 - not everybody has it
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ""
    token = order["token"]
    try:
        list_one(order["url"], order["options"], token)
    except ClientError as error:
        text = str(error)
        return words.lasting(text, order["url"]) if token or _MISSING in text else ""
    except BotoCoreError:
        pass
    return ""
