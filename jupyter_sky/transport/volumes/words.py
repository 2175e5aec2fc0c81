"""Turns the errors of bucket drivers, which differ for each driver, into sentences."""

from __future__ import annotations

import re

# The first match counts: a refusal may mention credentials, too.
_LASTING = (
    (
        r'invalid path: (Error parsing )?Path "(?P<name>[^"]*)"',
        "{url} has a file or folder that no volume can have, `{name}`: rename it there, or name "
        "a folder of the bucket that is without it",
    ),
    (
        r"NoSuchBucket|bucket does not exist",
        "there is no bucket {bucket}: check its name, or make it first",
    ),
    (
        r"ExpiredToken|token.{0,20}expired",
        "the credentials for {url} have expired: run a cell, which sends new ones",
    ),
    (
        r"RequestTimeTooSkewed",
        "the clock of this machine differs by minutes from that of {url}'s server: set it",
    ),
    (
        r"InvalidAccessKey|SignatureDoesNotMatch|InvalidToken",
        "{url} does not take these credentials: log in again where the notebook runs",
    ),
    (
        r"PermanentRedirect|AuthorizationHeaderMalformed|IllegalLocation",
        "{bucket} is in another region: set AWS_DEFAULT_REGION to it in the notebook",
    ),
    (
        r"metadata.{0,40}169\.254|169\.254\.16[49]\.254|169\.254\.170\.|metadata\.google",
        "there are no credentials for {url} on the node: log in where the notebook runs, or give "
        "the machines a role that may use it",
    ),
    (
        r"AccessDenied|PermissionDenied|PermissionError|Unauthenticated|Forbidden|GatedRepo"
        r"|(status( code)?:? ?|\()40[13]\b|\b40[13] (Client|Unauthorized)",
        "access to {url} is denied: ask whoever has it for the right to list and read it, and to "
        "write it unless you add :ro",
    ),
    (
        r"(?i)credential",
        "there are no credentials for {url} on the node: log in where the notebook runs, or give "
        "the machines a role that may use it",
    ),
)
_UNREACHED = (
    r"error sending request|dns error|tcp connect|ConnectError|ConnectionError|ConnectTimeout"
    r"|operation timed out|NameResolution|Max retries exceeded"
)


def lasting(text: str, url: str) -> str:
    """Return a sentence about a permanent error, with what to do; empty if it may be temporary.

    Parameters
    ----------
    text
        The type and the text of a driver's error.
    url
        The address of the volume.
    """
    bucket = url.partition("://")[2].partition("/")[0]
    for pattern, sentence in _LASTING:
        if found := re.search(pattern, text):
            return sentence.format(bucket=bucket, url=url, **found.groupdict())
    return ""


def is_busy(sentence: str) -> bool:
    """Return whether a sentence of `passing` is that of a server with too much to do."""
    return bool(re.search(r"its server says (SlowDown|ServiceUnavailable|503|429)", sentence))


def passing(text: str, url: str, done: str, server: str) -> str:
    """Return a sentence about an error that may be temporary, like a broken connection.

    Parameters
    ----------
    text, url
        As in `lasting`.
    done
        What was being done, like ``"listed"``.
    server
        The server that the user has chosen, if any.
    """
    if re.search(_UNREACHED, text):
        where = f"{server}, where {url} should be," if server else f"the server of {url}"
        check = "AWS_ENDPOINT_URL and " if server and url.startswith("s3") else ""
        return f"{where} is not reached from the node: check {check}its network"
    if code := re.search(r"<Code>([\w.]+)</Code>", text):
        said = re.search(r"<Message>([^<]{1,160})", text)
        return f"{url} cannot be {done}: its server says {code[1]}" + (
            f" ({said[1].rstrip('.')})" if said else ""
        )
    if status := re.search(r"status code: (\d+ [\w ]*\w)", text):
        return f"{url} cannot be {done}: its server says {status[1]}"
    first = next((line for line in text.splitlines() if line.strip()), "")
    return f"{url} cannot be {done}: {first.strip()[:160].rstrip('.')}"
