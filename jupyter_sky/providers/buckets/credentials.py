"""Credentials with which nodes access a bucket: they expire, and are only kept in memory.

A key that does not expire never leaves this computer. It is exchanged for a token of a few hours,
which opens the folder of the volume alone where the user may ask for such a one, and what the user
may do in AWS else; if neither is possible, remote nodes need a role of their own.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from datetime import UTC
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.providers.base import Provider
from jupyter_sky.providers.buckets.listing import list_one
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.sessions.boto import make_session
from jupyter_sky.transport.volumes.requests import SessionToken, VolumeOrder

SECONDS = 12 * 3600
"""Seconds for which a session token is asked for."""


def order_of(volume: Volume, provider: Provider) -> VolumeOrder:
    """Return the order for nodes, with credentials of this notebook if they need any.

    Raises
    ------
    UsageError
        If a remote node would need a key that does not expire.
    """
    is_here = provider.name == "local"
    options: dict[str, Any] = {}
    token: SessionToken | None = None
    if volume.scheme == "s3":
        options, token = _of_s3(volume, provider, is_here)
    elif volume.scheme == "gs":
        token = _of_google(is_here)
    elif volume.scheme == "hf":
        options, token = _of_hub()
    return {
        "url": volume.url,
        "path": volume.path,
        "read_only": volume.read_only,
        "limit": int(volume.limit or 0),
        "options": options,
        "token": token,
    }


def _of_s3(
    volume: Volume, provider: Provider, is_here: bool
) -> tuple[dict[str, Any], SessionToken | None]:
    endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        import boto3  # noqa: F401 - not everybody has it
        import botocore.exceptions
    except ImportError:
        options["region"] = os.environ.get("AWS_REGION") or os.environ.get(
            "AWS_DEFAULT_REGION", "us-east-1"
        )
        return options, None
    try:
        session = make_session(getattr(provider, "profile", None), is_fresh=True)
        found = session.get_credentials()
        frozen = found.get_frozen_credentials() if found else None
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
        raise UsageError(f"{volume.url}: {str(error).rstrip('.')}.") from None
    bucket = volume.url.removeprefix("s3://").partition("/")[0]
    options["region"] = _region_of(session, bucket, bool(frozen)) or "us-east-1"
    if frozen is None or getattr(provider, "instance_profile", None):
        if frozen is None and is_here:
            options["skip_signature"] = True  # a public bucket, as far as this computer gets
        return options, None  # the role of the instance, if there is one
    if frozen.token:
        return options, _token(frozen, getattr(found, "_expiry_time", None))
    try:
        return options, _bought_token(session, volume, options)
    except (botocore.exceptions.ClientError, botocore.exceptions.BotoCoreError) as error:
        if is_here:
            return options, _token(frozen, None)  # it does not leave this computer
        why = getattr(error, "response", {}).get("Error", {}).get("Code") or type(error).__name__
        raise UsageError(
            f"{volume.url}: your AWS key does not expire, so that it is not sent to nodes, and AWS "
            f"gives no session token for it ({why}): log in with `aws sso login`, or give the "
            "instances a role that may read the bucket, as in "
            "`%config Sky.aws = {'instance_profile': 'NAME'}`."
        ) from None


def _bought_token(session: Any, volume: Volume, options: Mapping[str, Any]) -> SessionToken:
    """Exchange a key that does not expire for a token."""
    from botocore.exceptions import BotoCoreError, ClientError

    sts = session.client("sts", region_name=options["region"])
    policy = _policy(volume, session.get_partition_for_region(options["region"]))
    try:
        narrow = _made(
            sts.get_federation_token(
                Name="jupyter-sky", Policy=json.dumps(policy), DurationSeconds=SECONDS
            )
        )
        # What the bucket's own policy allows the user, it does not allow this token.
        list_one(volume.url, options, narrow)
        return narrow
    except (ClientError, BotoCoreError):
        return _made(sts.get_session_token(DurationSeconds=SECONDS))


def _policy(volume: Volume, partition: str) -> dict[str, Any]:
    """Return a policy that allows what a volume needs, in its folder of the bucket."""
    bucket, _, folder = volume.url.removeprefix("s3://").partition("/")
    files = f"{bucket}/{folder}/*" if folder else f"{bucket}/*"
    listing, of_files = ["ListBucket"], ["GetObject"]
    if not volume.read_only:
        listing += ["ListBucketMultipartUploads"]
        of_files += ["PutObject", "DeleteObject", "AbortMultipartUpload"]
    statements: list[dict[str, Any]] = [
        {
            "Effect": "Allow",
            "Action": [f"s3:{action}" for action in actions],
            "Resource": f"arn:{partition}:s3:::{resource}",
        }
        for actions, resource in (
            (listing, bucket),
            (["GetBucketLocation"], bucket),
            (of_files, files),
        )
    ]
    if folder:  # names in other folders may say as much as files
        statements[0]["Condition"] = {"StringLike": {"s3:prefix": f"{folder}/*"}}
    encrypted = {
        "Effect": "Allow",
        "Action": ["kms:Decrypt", "kms:GenerateDataKey"],
        "Resource": "*",
        "Condition": {"StringLike": {"kms:ViaService": "s3.*"}},
    }
    return {"Version": "2012-10-17", "Statement": [*statements, encrypted]}


def _made(answer: Mapping[str, Any]) -> SessionToken:
    made = answer["Credentials"]
    return {
        "fields": {
            "access_key_id": made["AccessKeyId"],
            "secret_access_key": made["SecretAccessKey"],
            "token": made["SessionToken"],
        },
        "expires": made["Expiration"].timestamp(),
    }


def _token(frozen: Any, expires: Any) -> SessionToken:
    fields = {"access_key_id": frozen.access_key, "secret_access_key": frozen.secret_key}
    if frozen.token:
        fields["token"] = frozen.token
    return {"fields": fields, "expires": expires.timestamp() if expires else None}


def _region_of(session: Any, bucket: str, is_signed: bool) -> str | None:
    """Return the region of a bucket, which AWS tells regardless of permissions."""
    import botocore.exceptions

    if os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL"):
        return session.region_name or None
    if is_signed:
        try:
            client = session.client("s3", region_name=session.region_name or "us-east-1")
            said = client.head_bucket(Bucket=bucket)["ResponseMetadata"]
        except botocore.exceptions.ClientError as error:
            said = error.response.get("ResponseMetadata", {})
        except botocore.exceptions.BotoCoreError:
            said = {}
        if region := said.get("HTTPHeaders", {}).get("x-amz-bucket-region"):
            return str(region)
    return session.region_name or None


def _of_google(is_here: bool) -> SessionToken | None:
    """Return a Google access token, which is valid for an hour."""
    if is_here:
        return None  # the driver finds what this computer has
    with contextlib.suppress(Exception):  # google-auth may not be here, or not logged in
        from importlib import import_module

        google = import_module("google.auth")
        requests = import_module("google.auth.transport.requests")
        found, _ = google.default(["https://www.googleapis.com/auth/devstorage.read_write"])
        found.refresh(requests.Request())
        # Its time is that of UTC, without saying so.
        expires = found.expiry.replace(tzinfo=UTC).timestamp() if found.expiry else None
        return {"fields": {"token": found.token}, "expires": expires}
    return None


def _of_hub() -> tuple[dict[str, Any], SessionToken | None]:
    endpoint = os.environ.get("HF_ENDPOINT")
    options: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    try:
        from huggingface_hub import get_token
    except ImportError:
        return options, None
    found = get_token()
    # It goes over the cluster's own connection, and is on no disk of a node.
    return options, {"fields": {"token": found}, "expires": None} if found else None
