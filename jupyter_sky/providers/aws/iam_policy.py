"""The IAM policy to ask for: what the user has to be allowed to do at AWS, and no more."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

from jupyter_sky.providers.aws.network.session import DOCUMENT
from jupyter_sky.providers.aws.tags import ID

_LOOK = (
    "ec2:DescribeCapacityReservations",
    "ec2:DescribeImages",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceStatus",
    "ec2:DescribeInstanceTypeOfferings",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeKeyPairs",
    "ec2:DescribePlacementGroups",
    "ec2:DescribeRegions",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSnapshots",
    "ec2:DescribeSpotInstanceRequests",
    "ec2:DescribeSpotPriceHistory",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVolumes",
    "pricing:GetProducts",
    "servicequotas:ListServiceQuotas",
    "ssm:GetParameter",
)
_MAKE = (
    "ec2:CreatePlacementGroup",
    "ec2:CreateSecurityGroup",
    "ec2:ImportKeyPair",
)
# Instances are made with our tag alone: who makes others could not end them, and nobody finds them.
_RUN = ("ec2:RunInstances",)
_IMAGE = ("ec2:CreateImage",)
# What was there before cannot be tagged, as what has our tag can be deleted.
_TAG_NEW = ("ec2:CreateTags",)
_CREATE = [action.removeprefix("ec2:") for action in (*_IMAGE, *_MAKE, *_RUN)]
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
    "ec2:ModifyInstanceAttribute",
    "ec2:RevokeSecurityGroupIngress",
    "ec2:StartInstances",
    "ec2:StopInstances",
    "ec2:TerminateInstances",
)

# AWS's own samples for Session Manager say it so.
_OUR_INSTANCES = {"StringLike": {f"ssm:resourceTag/{ID}": "*"}}
_THIS_DOCUMENT = {"BoolIfExists": {"ssm:SessionDocumentAccessCheck": "true"}}
_OWN_SESSIONS = {"StringLike": {"ssm:resourceTag/aws:ssmmessages:session-id": "${aws:userid}"}}

_USE_KEY = (
    "kms:CreateGrant",
    "kms:Decrypt",
    "kms:DescribeKey",
    "kms:GenerateDataKeyWithoutPlaintext",
    "kms:ReEncryptFrom",
    "kms:ReEncryptTo",
)


def policy(
    profile: str | None = None,
    partition: str = "aws",
    kms_key: str | None = None,
    ssm: bool = False,
) -> str:
    """Return an IAM policy that lets who has it look and make, and change only what has our tag.

    Parameters
    ----------
    profile
        The name of the instance profile that machines get; its role bears the same name.
    partition
        The part of AWS where the user is: ``"aws"``, ``"aws-cn"`` or ``"aws-us-gov"``.
    kms_key
        The user's key that encrypts the disks, which EC2 has to be lent for that.
    ssm
        Whether machines are reached by sessions of Systems Manager.
    """
    created = {"StringEquals": {"ec2:CreateAction": _CREATE}}
    ours = {"StringLike": {f"aws:ResourceTag/{ID}": "*"}}
    instances = [f"arn:{partition}:ec2:*:*:instance/*"]
    statements = [
        _allow(_LOOK + _MAKE),
        {"Effect": "Allow", "Action": list(_RUN), "NotResource": instances},
        _allow(_RUN, {"StringLike": {f"aws:RequestTag/{ID}": "*"}}, instances),
        _allow(_TAG_NEW, created),
        _allow(_CHANGE_OURS, ours),
        # Of a disk of ours alone: an image of another's would bear our tag, and could be read.
        _allow(_IMAGE, ours, instances),
        _allow(
            _IMAGE, None, [f"arn:{partition}:ec2:*::{each}/*" for each in ("image", "snapshot")]
        ),
    ]
    if profile is not None:
        to_machines = {"StringEquals": {"iam:PassedToService": "ec2.amazonaws.com"}}
        role = f"arn:{partition}:iam::*:role/{profile}"
        statements.append(_allow(("iam:PassRole",), to_machines, [role]))
    if ssm:
        statements += _sessions(partition)
    if kms_key is not None:
        through_ec2 = {"StringLike": {"kms:ViaService": "ec2.*.amazonaws.com*"}}
        is_arn = kms_key.startswith("arn:")
        # An alias stands for a key: which one, only its own ARN tells.
        named = kms_key if is_arn and ":key/" in kms_key else f"arn:{partition}:kms:*:*:key/*"
        if not is_arn and not kms_key.startswith("alias/"):
            named = f"arn:{partition}:kms:*:*:key/{kms_key}"
        statements.append(_allow(_USE_KEY, through_ec2, [named]))
    return json.dumps({"Version": "2012-10-17", "Statement": statements}, indent=2)


def _sessions(partition: str) -> list[dict[str, object]]:
    """Return what allows sessions with our instances, to the port of SSH alone."""
    start, instances = ("ssm:StartSession",), [f"arn:{partition}:ec2:*:*:instance/*"]
    document = [f"arn:{partition}:ssm:*:*:document/{DOCUMENT}"]
    own = ("ssm:ResumeSession", "ssm:TerminateSession")
    return [
        _allow(start, {**_OUR_INSTANCES, **_THIS_DOCUMENT}, instances),
        _allow(start, _THIS_DOCUMENT, document),
        _allow(own, _OWN_SESSIONS, [f"arn:{partition}:ssm:*:*:session/*"]),
        # It needs the token that the start of a session has answered with.
        _allow(("ssmmessages:OpenDataChannel",)),
    ]


def partition_of(region: str) -> str:
    """Return the part of AWS that a region belongs to."""
    parts = {"cn-": "aws-cn", "us-gov-": "aws-us-gov"}
    return next((name for begin, name in parts.items() if region.startswith(begin)), "aws")


def _allow(
    actions: Sequence[str],
    condition: Mapping[str, Mapping[str, object]] | None = None,
    resources: Sequence[str] | None = None,
) -> dict[str, object]:
    statement: dict[str, object] = {
        "Effect": "Allow",
        "Action": list(actions),
        "Resource": "*" if resources is None else list(resources),
    }
    return {**statement, "Condition": condition} if condition else statement
