"""Checks buckets from here before machines are started."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.boto_session import make_session
from jupyter_sky.providers.buckets.credentials import order_of
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.transport.volumes import words
from jupyter_sky.transport.volumes.requests import VolumeOrder

_WITHIN = 5  # seconds; a bucket that does not answer here may answer the nodes
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
        import botocore
        from botocore.config import Config
        from botocore.exceptions import BotoCoreError, ClientError
    except ImportError:
        return ""
    options, token = order["options"], order["token"]
    given: dict[str, Any] = {"signature_version": botocore.UNSIGNED}
    keys: dict[str, Any] = {}
    if token:
        given, fields = {}, token["fields"]
        keys = {
            "aws_access_key_id": fields["access_key_id"],
            "aws_secret_access_key": fields["secret_access_key"],
            "aws_session_token": fields.get("token"),
        }
    client = make_session(**keys).client(
        "s3",
        region_name=options["region"],
        endpoint_url=options.get("endpoint"),
        config=Config(
            connect_timeout=_WITHIN,
            read_timeout=_WITHIN,
            retries={"total_max_attempts": 1},
            **given,
        ),
    )
    bucket, _, prefix = order["url"].removeprefix("s3://").partition("/")
    try:
        client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", MaxKeys=1)
    except ClientError as error:
        text = str(error)
        return words.lasting(text, order["url"]) if token or _MISSING in text else ""
    except BotoCoreError:
        pass
    return ""
