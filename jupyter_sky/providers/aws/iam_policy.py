"""What a person has to be allowed to do at AWS, and no more: the policy to ask for."""

from __future__ import annotations

import json

from jupyter_sky.providers.aws.ec2.tags import ID

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
    "ec2:CreateTags",
    "ec2:ImportKeyPair",
    "ec2:RunInstances",
)
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


def needed() -> tuple[str, ...]:
    """Return all actions."""
    return (*_LOOK, *_MAKE, *_CHANGE_OURS)


def policy() -> str:
    """Return an IAM policy: it may look and make, and change only what bears our tag."""
    ours = {"StringLike": {f"aws:ResourceTag/{ID}": "*"}}
    statements = [
        {"Effect": "Allow", "Action": [*_LOOK, *_MAKE], "Resource": "*"},
        {"Effect": "Allow", "Action": list(_CHANGE_OURS), "Resource": "*", "Condition": ours},
    ]
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, indent=2)
