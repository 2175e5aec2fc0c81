"""Clients of AWS services: those of a region, with the credentials of a profile."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import similar_names
from jupyter_sky.providers.aws import retries
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.local_store import cached
from jupyter_sky.providers.sessions.boto import make_session

_CONNECT_WITHIN = 10
_ANSWER_WITHIN = 60
_DAY = 86400.0
_PRICING_REGION = "us-east-1"  # one of the few regions with this service, which knows all regions

_AS = " as "  # between a region and a profile


class Clients:
    """The services of one region.

    Parameters
    ----------
    region, profile
        As in the user's AWS configuration; ``None`` for its defaults.

    Attributes
    ----------
    region
        Its name.
    profile
        The name of the profile, if there is one.
    location
        Region and profile, if any, as text for `clients_at` and for users.
    """

    def __init__(self, region: str | None = None, profile: str | None = None) -> None:
        check_installed()
        from botocore.exceptions import InvalidRegionError, UnknownRegionError

        with explain_errors():
            self._session = make_session(profile, region)
        if self._session.region_name is None:
            raise UsageError(
                "no AWS region is set: set AWS_DEFAULT_REGION, or type `--region us-east-1` where "
                "nodes are asked for."
            )
        self.region: str = self._session.region_name
        known = self._session.get_available_regions("ec2")
        with contextlib.suppress(InvalidRegionError, UnknownRegionError):
            partition = self._session.get_partition_for_region(self.region)
            known = self._session.get_available_regions("ec2", partition)
        if self.region not in known:
            raise UsageError(f"AWS has no region {self.region}: {did_you_mean(self.region, known)}")
        self.profile = name = profile or _usual_profile()
        self.location = f"{self.region}{_AS}{name}" if name else self.region

    def at(self, region: str) -> Clients:
        """Return clients of another region, with the same profile."""
        return clients(region, self.profile)

    @functools.cached_property
    def ec2(self) -> Any:
        """Instances, networks, keys."""
        return self._client("ec2", self.region)

    @functools.cached_property
    def ssm(self) -> Any:
        """Public parameters, such as the newest images."""
        return self._client("ssm", self.region)

    @functools.cached_property
    def sts(self) -> Any:
        """The user's identity."""
        return self._client("sts", self.region)

    @functools.cached_property
    def quotas(self) -> Any:
        """The quotas of the account."""
        return self._client("service-quotas", self.region, 2)

    @functools.cached_property
    def pricing(self) -> Any:
        """Prices."""
        # Offers also work without it.
        return self._client("pricing", _PRICING_REGION, 2)

    @property
    def user(self) -> str:
        """The user's identity according to AWS; empty if unknown."""
        name = hashlib.sha256(repr((self.location, _settings())).encode()).hexdigest()[:12]
        try:
            answer, _ = cached(f"user-{name}", _DAY, self.ask_user)
        except AWSError:
            return ""
        return str(answer)

    @property
    def number(self) -> str:
        """The number of the account; empty if unknown."""
        return self.user.split(":")[4] if self.user.count(":") >= 5 else ""

    @property
    def account(self) -> str:
        """Describes the location and the account, to be shown with prices."""
        number = self.number or "an unknown number"
        profile = f" (profile {self.profile})" if self.profile else ""
        return f"in {self.region}, account {number}{profile}"

    def ask_user(self) -> str:
        """Ask AWS for the user's identity, which needs no permission."""
        with explain_errors():
            return str(self.sts.get_caller_identity()["Arn"])

    def _client(self, service: str, region: str, attempts: int = retries.ATTEMPTS) -> Any:
        from botocore.config import Config

        config = Config(
            # `retries` makes further attempts.
            retries={"mode": "standard", "total_max_attempts": 1},
            connect_timeout=_CONNECT_WITHIN,
            read_timeout=_ANSWER_WITHIN,
        )
        with explain_errors():
            client = self._session.client(service, region_name=region, config=config)
        retries.attach(client, attempts)
        return client


def clients(region: str | None = None, profile: str | None = None) -> Clients:
    """Return the clients of a region, which are cached, since making them takes a while."""
    return _kept(region, profile, _settings())


def clients_at(location: str) -> Clients:
    """Return the services of a `Clients.location`, whatever this process's settings are."""
    region, _, profile = location.partition(_AS)
    return clients(region, profile or None)


def _usual_profile() -> str | None:
    """Return the profile that the environment names; credentials there take precedence."""
    if "AWS_ACCESS_KEY_ID" in os.environ:
        return None
    return os.environ.get("AWS_PROFILE") or os.environ.get("AWS_DEFAULT_PROFILE")


@functools.lru_cache(maxsize=64)
def _kept(region: str | None, profile: str | None, settings: object) -> Clients:
    return Clients(region, profile)


def _settings() -> tuple[object, ...]:
    """Return a key that changes when the user logs in again, or as another user."""
    values = sorted((name, value) for name, value in os.environ.items() if name.startswith("AWS_"))
    files = (
        Path(os.environ.get(name, usual)).expanduser()
        for name, usual in (
            ("AWS_CONFIG_FILE", "~/.aws/config"),
            ("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        )
    )
    return (*values, *(path.stat().st_mtime if path.exists() else None for path in files))


def check_installed() -> None:
    """Raise an error if boto3 is missing."""
    if importlib.util.find_spec("boto3") is None:
        raise UsageError(
            "AWS is reached with boto3, which is not installed: "
            "run `%pip install 'jupyter-sky[aws]'`."
        )


def did_you_mean(word: str, known: Iterable[str], otherwise: str | None = None) -> str:
    """Return the end of a sentence: the names closest to a wrong one, or all of them."""
    names = list(known)
    if found := similar_names(word, names, 3):
        return f"did you mean {' or '.join(found)}?"
    return otherwise or f"choose from {', '.join(names)}."
