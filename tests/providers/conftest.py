"""Clusters of four ranks, as the tests of `cluster` have them."""

from __future__ import annotations

from tests.cluster.conftest import new

__all__ = ["new"]
