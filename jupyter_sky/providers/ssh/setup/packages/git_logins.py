"""Logins in addresses of Git repositories, on their way to a host.

pip and uv pass the address of a repository to `git` as an argument, which every user of the host
can read. But git also accepts logins from its configuration, which can be in the environment.
"""

from __future__ import annotations

import base64
import re
from urllib.parse import unquote

_REPOSITORY = re.compile(r"(git\+https?://)([^/\s@\"']+)@([^\s#@\"']+)")


def without_logins(text: str, logins: dict[str, str]) -> str:
    """Return requirements without the logins of repositories, and add those to ``logins``.

    Parameters
    ----------
    text
        Requirements in pip's syntax.
    logins
        For the address of each repository, the HTTP header with the login.
    """

    def take(found: re.Match[str]) -> str:
        scheme, login, where = found.groups()
        name, _, password = login.partition(":")
        pair = f"{unquote(name)}:{unquote(password)}"
        shown = base64.b64encode(pair.encode()).decode()
        logins[scheme.removeprefix("git+") + where] = f"Authorization: Basic {shown}"
        return scheme + where

    return _REPOSITORY.sub(take, text)


def variables(logins: dict[str, str]) -> dict[str, str]:
    """Return the environment variables with the logins for `git`."""
    made = {"GIT_CONFIG_COUNT": str(len(logins))} if logins else {}
    for number, (where, header) in enumerate(logins.items()):
        made[f"GIT_CONFIG_KEY_{number}"] = f"http.{where}.extraHeader"
        made[f"GIT_CONFIG_VALUE_{number}"] = header
    return made
