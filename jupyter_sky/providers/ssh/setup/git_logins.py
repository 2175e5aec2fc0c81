"""Logins in addresses of Git repositories, on their way to a host.

pip and uv give the address of a repository to `git` as an argument, where every user of the host
can read it. Git takes a login from its configuration too, and that from the environment.
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
        Requirements as pip writes them.
    logins
        By the address of each repository, the header with which it is asked for.
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
    """Return the variables by which `git` knows logins."""
    made = {"GIT_CONFIG_COUNT": str(len(logins))} if logins else {}
    for number, (where, header) in enumerate(logins.items()):
        made[f"GIT_CONFIG_KEY_{number}"] = f"http.{where}.extraHeader"
        made[f"GIT_CONFIG_VALUE_{number}"] = header
    return made
