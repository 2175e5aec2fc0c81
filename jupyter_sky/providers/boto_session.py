"""Sessions of boto3 that share what botocore has read of AWS's services.

A session reads descriptions of them from files, which takes up to half a second for each session
that does it anew; what is in them is the same for all.
"""

from __future__ import annotations

import functools
from typing import Any


def make_session(
    profile: str | None = None, region: str | None = None, **credentials: str | None
) -> Any:
    """Return a `boto3.Session`.

    Parameters
    ----------
    profile, region
        As in the user's AWS configuration; ``None`` takes what it says.
    credentials
        ``aws_access_key_id`` and the like, in place of those that are configured.

    Raises
    ------
    botocore.exceptions.ProfileNotFound
        When there is no such profile.
    """
    import boto3
    import botocore.session

    core = botocore.session.Session(profile=profile)
    core.register_component("data_loader", _loader(core.get_config_variable("data_path")))
    return boto3.Session(botocore_session=core, region_name=region, **credentials)


@functools.cache
def _loader(search_path: str | None) -> Any:
    """Return what reads botocore's files, and those of folders that the user has named."""
    import botocore.loaders

    return botocore.loaders.create_loader(search_path)
