"""Imported by the process that forks kernels: what takes each of them half a second is there then.

That is boto3 and its description of EC2. The process has the account in its environment.
"""

from __future__ import annotations

import os

from jupyter_sky.providers.aws.clients import clients
from jupyter_sky.providers.aws.market import offers
from tests.providers.aws import starting

__all__ = ["offers", "starting"]

if "AWS_ENDPOINT_URL" in os.environ:
    made = clients()
    for service in (made.ec2, made.ssm, made.pricing, made.sts):
        # Each operation is looked up when it is first called.
        service.meta.service_model.operation_names  # noqa: B018
