"""Clients of AWS services that wait out throttling, and whose errors are single sentences."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib.util
import os
import re
import time
from collections.abc import Iterable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_duration, similar_names
from jupyter_sky.providers.aws import mfa, retries
from jupyter_sky.providers.aws.local_store import cached
from jupyter_sky.providers.boto_session import make_session

UNREACHABLE = "Unreachable"
"""The code of an error where several attempts had no answer of AWS."""

_CONNECT_WITHIN = 10
_ANSWER_WITHIN = 60
_DAY = 86400.0
_PRICING_REGION = "us-east-1"  # one of the few regions with this service, which knows all regions

_AS = " as "  # between a region and a profile

_NO_CREDENTIALS = (
    "there are no credentials for AWS here: run `aws configure` or `aws sso login` in a terminal, "
    "or set AWS_PROFILE"
)
_EXPIRED = "your session with AWS has expired: run `aws sso login` in a terminal, then the cell"
_REFUSED = (
    "AWS does not accept these credentials: run `aws sts get-caller-identity` in a terminal; where "
    "that works, your account has not enabled the region"
)
_TOO_LATE = ("ExpiredToken", "ExpiredTokenException", "RequestExpired")
_NOT_ACCEPTED = (
    "AuthFailure",
    "InvalidClientTokenId",
    "InvalidSignatureException",
    "SignatureDoesNotMatch",
)
_NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
_CLOCKS_DIFFER = 240.0  # seconds; AWS refuses requests from five minutes on, as it receives them


class AWSError(SkyError):
    """AWS refused a request.

    Attributes
    ----------
    code
        AWS's code for the reason, like ``"InsufficientInstanceCapacity"``.
    message
        AWS's own sentence.
    """

    def __init__(self, text: str, code: str = "", message: str = "") -> None:
        super().__init__(text)
        self.code = code
        self.message = message


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
        import botocore.exceptions

        with explain_errors():
            self._session = make_session(profile, region)
        mfa.prepare(self._session)
        if self._session.region_name is None:
            raise UsageError(
                "no AWS region is set: set AWS_DEFAULT_REGION, or type `--region us-east-1` where "
                "nodes are asked for."
            )
        self.region: str = self._session.region_name
        known = self._session.get_available_regions("ec2")
        with contextlib.suppress(botocore.exceptions.InvalidRegionError):
            partition = self._session.get_partition_for_region(self.region)
            known = self._session.get_available_regions("ec2", partition)
        if self.region not in known:
            raise UsageError(f"AWS has no region {self.region}: {did_you_mean(self.region, known)}")
        self.profile = name = profile or _usual_profile()
        self.location = f"{self.region}{_AS}{name}" if name else self.region

    def at(self, region: str) -> Clients:
        """Return clients of another region, with the same profile."""
        return clients_at(region + self.location.removeprefix(self.region))

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
        profile = self.location.removeprefix(self.region).removeprefix(_AS)
        return f"in {self.region}, account {number}{f' (profile {profile})' if profile else ''}"

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


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turn boto3's errors into an `AWSError` with one sentence.

    Raises
    ------
    AWSError
        In place of errors of boto3.
    """
    import botocore.exceptions as boto

    try:
        yield
    except boto.ClientError as error:
        raise _refusal(error) from None
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError):
        raise AWSError(f"{_NO_CREDENTIALS}.") from None
    except (boto.UnauthorizedSSOTokenError, boto.TokenRetrievalError, boto.SSOTokenLoadError):
        raise AWSError(f"{_EXPIRED}.") from None
    except boto.ProfileNotFound as error:
        raise AWSError(
            f"{error}: `aws configure list-profiles` in a terminal lists them."
        ) from None
    except boto.HTTPClientError as error:
        raise AWSError(
            f"AWS cannot be reached ({_one_line(error)}): is this computer online, and does the "
            f"region exist?",
            UNREACHABLE,
        ) from None
    except boto.BotoCoreError as error:
        raise AWSError(f"AWS cannot be used: {_one_line(error)}.") from None


def _refusal(error: Any) -> AWSError:
    code = error.response["Error"].get("Code", "")
    message = _one_line(error.response["Error"].get("Message", ""))
    is_refused = code in _NOT_ACCEPTED or code.startswith("UnrecognizedClient")
    if (is_refused or code in _TOO_LATE) and (clock := _clock(error)):
        return AWSError(f"{clock}.", code, message)
    if code in _TOO_LATE:
        return AWSError(f"{_EXPIRED}.", code, message)
    if is_refused:
        return AWSError(f"{_REFUSED}.", code, message)
    if code in ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException"):
        action = re.search(r"\b[a-z0-9-]+:[A-Z]\w+", message)
        name = action[0] if action else error.operation_name
        if by := re.search(r"service control policy|resource control policy", message):
            return AWSError(
                f"a {by[0]} of your organization denies {name}: ask who manages your organization "
                "at AWS, as no policy of your own user changes that.",
                code,
                message,
            )
        return AWSError(
            f"your AWS user may not do {name}: ask for the policy that "
            "`%sky doctor --provider aws` prints.",
            code,
            message,
        )
    if code == _NO_SPOT_ROLE:
        return AWSError(
            "the account has used no spot instances yet, and your AWS user may not make the role "
            "that they need: ask who manages the account to run `aws iam "
            "create-service-linked-role --aws-service-name spot.amazonaws.com` once, or leave out "
            "--spot.",
            code,
            message,
        )
    if retries.is_throttled(code):
        return AWSError(
            f"AWS still says {code} to {error.operation_name}, which was tried several times: this "
            "account makes too many requests. Try again in some minutes.",
            code,
            message,
        )
    return AWSError(
        f"AWS says {code} to {error.operation_name}: {message.rstrip('.')}.", code, message
    )


def _clock(error: Any) -> str:
    """Say that the clock of this computer is wrong, if it is: AWS only says that it refuses."""
    date = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("date", "")
    try:
        ahead = time.time() - parsedate_to_datetime(date).timestamp()
    except ValueError:
        return ""
    if abs(ahead) < _CLOCKS_DIFFER:
        return ""
    how = "ahead of" if ahead > 0 else "behind"
    return (
        f"this computer's clock is {format_duration(abs(ahead))} {how} that of AWS, which refuses "
        "such requests: set it, then run the cell again"
    )


def _one_line(text: object) -> str:
    return " ".join(str(text).split())
