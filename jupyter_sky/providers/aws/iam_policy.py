"""The IAM policy to ask for: what the user has to be allowed to do at AWS, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from jupyter_sky.providers.aws.tags import ID

_LOOK = (
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeKeyPairs",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSnapshots",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeVolumes",
    "pricing:GetProducts",
    "ssm:GetParameter",
)
_MAKE = (
    "ec2:CreateImage",
    "ec2:CreatePlacementGroup",
    "ec2:CreateSecurityGroup",
    "ec2:ImportKeyPair",
    "ec2:RunInstances",
)
# What was there before cannot be tagged, as what has our tag can be deleted.
_TAG_NEW = ("ec2:CreateTags",)
_CREATE = [action.removeprefix("ec2:") for action in _MAKE]
_CHANGE_OURS = (
    "ec2:AuthorizeSecurityGroupEgress",
    "ec2:AuthorizeSecurityGroupIngress",
    "ec2:CancelSpotInstanceRequests",
    "ec2:DeleteKeyPair",
    "ec2:DeletePlacementGroup",
    "ec2:DeleteSecurityGroup",
    "ec2:DeleteSnapshot",
    "ec2:DeleteVolume",
    "ec2:DeregisterImage",
    "ec2:TerminateInstances",
)


def policy() -> str:
    """Return an IAM policy that lets who has it look and make, and change only what has our tag."""
    created = {"StringEquals": {"ec2:CreateAction": _CREATE}}
    ours = {"StringLike": {f"aws:ResourceTag/{ID}": "*"}}
    statements = [
        _allow(_LOOK + _MAKE),
        _allow(_TAG_NEW, created),
        _allow(_CHANGE_OURS, ours),
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, indent=2)


def _allow(
    actions: Sequence[str], condition: Mapping[str, Mapping[str, object]] | None = None
) -> dict[str, object]:
    statement: dict[str, object] = {"Effect": "Allow", "Action": list(actions), "Resource": "*"}
    return {**statement, "Condition": condition} if condition else statement
