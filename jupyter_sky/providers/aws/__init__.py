"""The AWS provider: nodes are EC2 instances, rented for a cluster and released with it."""

from __future__ import annotations

from jupyter_sky.providers.aws.provider import AWS

__all__ = ["AWS"]
