"""The results of a provider's checks for ``%sky doctor``."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes
    ----------
    name
        The name of the check.
    found
        What was found.
    fix
        What to do about it; empty if all is well.
    """

    name: str
    found: str
    fix: str = ""
