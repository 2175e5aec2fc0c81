"""Looks into a bucket of S3 with the credentials that nodes get."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from jupyter_sky.providers.sessions.boto import make_session
from jupyter_sky.transport.volumes.requests import SessionToken

_WITHIN = 5  # seconds; a bucket that does not answer here may answer the nodes


def list_one(url: str, options: Mapping[str, Any], token: SessionToken | None) -> None:
    """List a single file.

    Parameters
    ----------
    url
        The bucket, and a folder in it.
    options
        The ``region`` of the bucket, and the ``endpoint`` that takes the place of AWS's.
    token
        The credentials; without, the request is not signed.

    Raises
    ------
    botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError
        If that is denied, or nobody answers.
    """
    import botocore
    from botocore.config import Config

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
    bucket, _, prefix = url.removeprefix("s3://").partition("/")
    client.list_objects_v2(Bucket=bucket, Prefix=f"{prefix}/" if prefix else "", MaxKeys=1)
