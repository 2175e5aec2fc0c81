"""Retries of AWS calls, with pauses that Stop ends at once.

botocore itself sleeps uninterruptibly between attempts, and mistakes a lack of capacity, for which
AWS uses status 500, for an outage.
"""

from __future__ import annotations

import contextlib
import functools
import random
import threading
import time
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any

from jupyter_sky.errors import SkyError

ATTEMPTS = 8
"""With pauses that grow, about half a minute of throttling."""

_LONGEST_PAUSE = 20.0

_REFUSALS = ("Insufficient", "Unfulfillable", "LimitExceeded", "CountExceeded", "Unsupported")
"""How codes begin or end that say what AWS has not, whatever the status of the answer."""

_THROTTLED = (
    "RequestLimitExceeded",
    "BandwidthLimitExceeded",
    "LimitExceededException",
    "SlowDown",
    "TooManyRequestsException",
)
_TRANSIENT = ("RequestTimeout", "RequestTimeoutException", "PriorRequestNotComplete")
_TRANSIENT_STATUS = (429, 500, 502, 503, 504)
_OUTAGES = (
    "",
    "InternalError",
    "InternalFailure",
    "ServiceUnavailable",
    "Unavailable",
    "Unreachable",
)
"""How answers are called that are lost, or say nothing of what was asked for."""

_USES_NEW = (
    "AuthorizeSecurityGroupEgress",
    "AuthorizeSecurityGroupIngress",
    "RunInstances",
)
"""Operations that name what was made a moment ago, as one server of AWS learns after the other."""

_NOT_KNOWN_YET = (
    "InvalidGroup.NotFound",
    "InvalidKeyPair.NotFound",
    "InvalidPlacementGroup.Unknown",
    "InvalidSecurityGroupID.NotFound",
)

_stopping: ContextVar[threading.Event | None] = ContextVar("stopping", default=None)


class Stopped(SkyError):
    """The user has stopped the work."""


@contextlib.contextmanager
def until(stopping: threading.Event) -> Iterator[None]:
    """Make no more retries in this thread once ``stopping`` is set."""
    token = _stopping.set(stopping)
    try:
        yield
    finally:
        _stopping.reset(token)


def attach(client: Any, most: int = ATTEMPTS) -> None:
    """Let a boto3 client, which makes one attempt, make up to that many."""
    service = client.meta.service_model.service_id.hyphenize()
    decide = functools.partial(_decide, most)
    client.meta.events.register(f"needs-retry.{service}", decide, unique_id="jupyter-sky-retry")


def is_throttled(code: str) -> bool:
    """Return whether AWS says with this code that it gets too many requests."""
    return code in _THROTTLED or "Throttl" in code


def may_be_done(code: str) -> bool:
    """Return whether a call that has ended with this code may have been carried out."""
    return code in (*_OUTAGES, *_TRANSIENT) or code.isdigit()


def pause_after(attempts: int) -> None:
    """Wait before another attempt, the longer the more there were.

    Raises
    ------
    Stopped
        When the user stops the work.
    """
    # With jitter: calls that are throttled together should not be repeated together.
    pause = min(_LONGEST_PAUSE, random.uniform(0.3, 1.0) * 2 ** (attempts - 1))
    stopping = _stopping.get()
    if stopping is None:
        time.sleep(pause)
    elif stopping.wait(pause):
        raise Stopped("it was stopped.")


def _decide(
    most: int,
    attempts: int,
    operation: Any,
    response: tuple[Any, dict[str, Any]] | None = None,
    caught_exception: Exception | None = None,
    **_: Any,
) -> float | None:
    """Wait and return 0 to repeat a call; return ``None`` not to."""
    if attempts >= most or not _may_pass(operation.name, response, caught_exception):
        return None
    pause_after(attempts)
    return 0.0


def _may_pass(
    operation: str, response: tuple[Any, dict[str, Any]] | None, caught_exception: Exception | None
) -> bool:
    from botocore.exceptions import ConnectionError, HTTPClientError

    if response is None:
        return isinstance(caught_exception, ConnectionError | HTTPClientError)
    http, parsed = response
    code = str(parsed.get("Error", {}).get("Code", ""))
    if is_throttled(code):
        return True
    if code.startswith(_REFUSALS) or code.endswith(_REFUSALS):
        return False
    if operation in _USES_NEW and code in _NOT_KNOWN_YET:
        return True
    return code in _TRANSIENT or http.status_code in _TRANSIENT_STATUS
