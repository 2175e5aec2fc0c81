"""boto3 sessions that share botocore's descriptions of AWS services.

A session reads these from files, which takes up to half a second; their content is the same for all
sessions. They also read times faster, which are half of what there is to read in a thousand prices.
"""

from __future__ import annotations

import functools
from datetime import datetime
from typing import Any

from jupyter_sky.imports import import_whole
from jupyter_sky.providers.sessions import mfa


def make_session(
    profile: str | None = None,
    region: str | None = None,
    is_fresh: bool = False,
    **credentials: str | None,
) -> Any:
    """Return a `boto3.Session`.

    Parameters
    ----------
    profile, region
        As in the user's AWS configuration; ``None`` for its defaults.
    is_fresh
        Whether the credentials of a role have all their time left; see `mfa.prepare`.
    credentials
        ``aws_access_key_id`` and so on, in place of the configured ones.

    Raises
    ------
    botocore.exceptions.ProfileNotFound
        If there is no such profile.
    """
    import_whole("boto3", "botocore.session")
    import boto3
    import botocore.session

    core = botocore.session.Session(profile=profile)
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=_moment)
    session = boto3.Session(botocore_session=core, region_name=region, **credentials)
    mfa.prepare(session, is_fresh)
    return session


@functools.cache
def _loader(search_path: str | None) -> Any:
    """Return the loader of botocore's files, including folders that the user has configured."""
    import botocore.loaders

    return botocore.loaders.create_loader(search_path)


def _moment(value: Any) -> datetime:
    """Return what an answer has as a time: botocore guesses the format of each for 0.1 ms."""
    if isinstance(value, str) and value.endswith("Z"):
        try:
            return datetime.fromisoformat(value)
        except ValueError:
            pass
    from botocore.utils import parse_timestamp

    found: datetime = parse_timestamp(value)
    return found
