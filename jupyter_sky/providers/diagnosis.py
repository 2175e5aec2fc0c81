"""What ``%sky doctor`` shows of a provider: one result for each thing that was checked."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class CheckResult:
    """What one check found.

    Attributes
    ----------
    name
        What was checked.
    found
        What there is.
    fix
        What to do about it; empty if all is well.
    """

    name: str
    found: str
    fix: str = ""
