"""Sizes of what is sent, in words, and the limit above which a person is asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jupyter_sky.errors import UsageError

HUGE = 4_000_000_000
"""Bytes above which values are sent only if the person says that this is meant."""


def describe_size(size: float) -> str:
    """Return a number of bytes in words."""
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:,.1f} MB"


def refuse_huge(sizes: Mapping[str, int], limit: float | None) -> None:
    """Raise ``UsageError`` when more than ``limit`` bytes would be sent; name what is large."""
    total = sum(sizes.values())
    if limit is None or total <= limit:
        return
    largest = sorted(sizes.items(), key=lambda entry: -entry[1])
    shown = [f"{name} ({describe_size(size)})" for name, size in largest if size >= 0.1 * total]
    raise UsageError(
        f"{_listed(shown)} would be sent, and more than {describe_size(limit)} is sent only if you "
        "say so: add `--allow-large` to the cell, or load it inside of the cell."
    )


def _listed(words: Sequence[str]) -> str:
    return " and ".join(filter(None, [", ".join(words[:-1]), words[-1]]))
