"""Errors of ours: one sentence for the person, never a traceback of our own code."""

from __future__ import annotations


class SkyError(Exception):
    """Something that the person should know, said in one sentence."""

    def _render_traceback_(self) -> list[str]:
        # IPython asks an exception for this before it formats one itself.
        return [f"{type(self).__name__}: {self}"]


class UsageError(SkyError, ValueError):
    """What was typed cannot be done; the sentence says what to type instead."""


class ClusterLost(SkyError):
    """The cluster, or a part that a run needs, is gone."""
