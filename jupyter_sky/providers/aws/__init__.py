"""The AWS provider: nodes are instances of EC2, rented for the cluster and given back with it."""

from __future__ import annotations

from jupyter_sky.providers.aws.provider import AWS

__all__ = ["AWS"]
