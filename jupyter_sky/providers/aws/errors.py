"""Errors of AWS services, each as one sentence that says what to do."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Iterator
from email.utils import parsedate_to_datetime
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import format_duration
from jupyter_sky.providers.aws import retries

UNREACHABLE = "Unreachable"
"""The code of an error where several attempts had no answer of AWS."""

NO_SPOT_ROLE = "AuthFailure.ServiceLinkedRoleCreationNotPermitted"
"""The code where the account lacks what its first spot instance needs."""

NO_CREDENTIALS = "NoCredentials"
"""The code of errors where nothing says who asks."""

_LOG_IN = (
    "there are no credentials for AWS here: run `aws configure` or `aws sso login` in a terminal, "
    "or set AWS_PROFILE"
)
_EXPIRED = "your session with AWS has expired: run `aws sso login` in a terminal, then the cell"
_NO_SUCH_USER = (
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
_FORBIDDEN = ("UnauthorizedOperation", "AccessDenied", "AccessDeniedException")
_FIRST_SPOT = (
    "the account has used no spot instances yet, and your AWS user may not make the role that they "
    "need: ask who manages the account to run `aws iam create-service-linked-role "
    "--aws-service-name spot.amazonaws.com` once, or leave out --spot"
)
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


@contextlib.contextmanager
def explain_errors(*done: str) -> Iterator[None]:
    """Turn boto3's errors into an `AWSError` with one sentence.

    Parameters
    ----------
    done
        Codes with which AWS says that what was asked for is so already, as by a first attempt whose
        answer was lost: these are no errors.

    Raises
    ------
    AWSError
        In place of errors of boto3.
    """
    import botocore.exceptions as boto

    try:
        yield
    except boto.ClientError as error:
        refusal = _refusal(error)
        if refusal.code not in done:
            raise refusal from None
    except (boto.NoCredentialsError, boto.PartialCredentialsError, boto.CredentialRetrievalError):
        raise AWSError(f"{_LOG_IN}.", NO_CREDENTIALS) from None
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
    said = error.response["Error"]
    code, message = said.get("Code", ""), _one_line(said.get("Message", ""))
    return AWSError(f"{_why_refused(error, code, message)}.", code, message)


def _why_refused(error: Any, code: str, message: str) -> str:
    is_unknown = code in _NOT_ACCEPTED or code.startswith("UnrecognizedClient")
    if (is_unknown or code in _TOO_LATE) and (clock := _clock(error)):
        return clock
    if code in _TOO_LATE:
        return _EXPIRED
    if is_unknown:
        return _NO_SUCH_USER
    if code in _FORBIDDEN:
        action = re.search(r"\b[a-z0-9-]+:[A-Z]\w+", message)
        name = action[0] if action else error.operation_name
        if by := re.search(r"service control policy|resource control policy", message):
            return (
                f"a {by[0]} of your organization denies {name}: ask who manages your organization "
                "at AWS, as no policy of your own user changes that"
            )
        return (
            f"your AWS user may not do {name}: ask for the policy that "
            "`%sky doctor --provider aws` prints"
        )
    if code == NO_SPOT_ROLE:
        return _FIRST_SPOT
    if retries.is_throttled(code):
        return (
            f"AWS still says {code} to {error.operation_name}, which was tried several times: this "
            "account makes too many requests. Try again in some minutes"
        )
    return f"AWS says {code} to {error.operation_name}: {message.rstrip('.')}"


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
