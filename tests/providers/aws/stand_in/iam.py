"""A policy that is enforced: an account's calls are refused where it does not allow them.

The rules are those that AWS documents: a request needs a permission for its action on each resource
that it names or makes; a statement applies where action, resource and all conditions match; a
condition on a key that the request does not have does not hold, unless its operator ends with
``IfExists``; ``${aws:userid}`` stands for who asks; a deny is stronger than any allow,
and what nothing allows is denied. Who gives tags to what a call makes needs ``ec2:CreateTags`` for
that, with the call's name as ``ec2:CreateAction``; who gives a machine a role needs
``iam:PassRole``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any

from tests.providers.aws.stand_in.account import Account, Answer, Call
from tests.providers.aws.stand_in.faults import denied

OWNER = "owner"
"""The access key of who owns the account, and may do everything."""

_SERVICES = {
    "GetParameter": "ssm",
    "GetProducts": "pricing",
    "ListServiceQuotas": "servicequotas",
    "GetCallerIdentity": "sts",
}

# The resources of each action that is no look, from AWS's Service Authorization Reference: the
# type, and the parameter that names it, or None where the call makes it.
_RESOURCES: Mapping[str, tuple[tuple[str, str | None], ...]] = {
    "RunInstances": (
        ("image", "ImageId"),
        ("instance", None),
        ("key-pair", "KeyName"),
        ("network-interface", None),
        ("placement-group", r"Placement\.GroupName"),
        ("security-group", r"NetworkInterface\.\d+\.SecurityGroupId\.\d+"),
        ("subnet", r"NetworkInterface\.\d+\.SubnetId"),
        ("volume", None),
    ),
    "CreateImage": (("instance", "InstanceId"), ("image", None), ("snapshot", None)),
    "CreatePlacementGroup": (("placement-group", None),),
    "CreateSecurityGroup": (("security-group", None), ("vpc", "VpcId")),
    "ImportKeyPair": (("key-pair", None),),
    "CreateTags": (("*", r"ResourceId\.\d+"),),
    "AuthorizeSecurityGroupEgress": (("security-group", "GroupId"),),
    "AuthorizeSecurityGroupIngress": (("security-group", "GroupId"),),
    "RevokeSecurityGroupIngress": (("security-group", "GroupId"),),
    "CancelSpotInstanceRequests": (("spot-instances-request", r"SpotInstanceRequestId\.\d+"),),
    "DeleteKeyPair": (("key-pair", "KeyName"),),
    "DeletePlacementGroup": (("placement-group", "GroupName"),),
    "DeleteSecurityGroup": (("security-group", "GroupId"),),
    "DeleteSnapshot": (("snapshot", "SnapshotId"),),
    "DeleteVolume": (("volume", "VolumeId"),),
    "DeregisterImage": (("image", "ImageId"),),
    "TerminateInstances": (("instance", r"InstanceId\.\d+"),),
    "ModifyInstanceAttribute": (("instance", "InstanceId"),),
    "StartInstances": (("instance", r"InstanceId\.\d+"),),
    "StopInstances": (("instance", r"InstanceId\.\d+"),),
}
_WITHOUT_ACCOUNT = ("image", "snapshot")


@dataclass(frozen=True)
class Request:
    """What IAM decides about: an action on a resource, and what is known of both."""

    action: str
    resource: str
    context: Mapping[str, str] = field(default_factory=dict)


def allows(policy: str, request: Request) -> bool:
    """Decide by the statements of a policy."""
    effects = {
        statement["Effect"]
        for statement in json.loads(policy)["Statement"]
        if _applies(statement, request)
    }
    return effects == {"Allow"}


def _applies(statement: Mapping[str, Any], request: Request) -> bool:
    named = "NotResource" if "NotResource" in statement else "Resource"
    is_named = any(_matches(request.resource, each) for each in _every(statement[named]))
    return (
        any(_matches(request.action.lower(), each.lower()) for each in _every(statement["Action"]))
        and is_named is (named == "Resource")
        and all(
            _holds(operator, request.context.get(key), _filled_in(wanted, request.context))
            for operator, keys in statement.get("Condition", {}).items()
            for key, wanted in keys.items()
        )
    )


def _holds(operator: str, value: str | None, wanted: list[str]) -> bool:
    tests = {"StringEquals": str.__eq__, "StringLike": _matches, "Bool": str.__eq__}
    if operator.endswith("IfExists"):
        if value is None:
            return True
        operator = operator.removesuffix("IfExists")
    return value is not None and any(tests[operator](value, each) for each in wanted)


def _filled_in(wanted: Any, context: Mapping[str, str]) -> list[str]:
    """Return what a condition wants, with its policy variables filled in."""
    return [
        re.sub(r"\$\{([^}]+)\}", lambda found: context.get(found[1], ""), each)
        for each in _every(wanted)
    ]


def _matches(text: str, pattern: str) -> bool:
    # Brackets mean nothing there.
    return fnmatchcase(text, pattern.replace("[", "[[]"))


def _every(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value)


def requests_of(call: Call, tags_of: Callable[[str, str], Mapping[str, str]]) -> Iterator[Request]:
    """Yield what IAM has to allow, all of it, for a call.

    Parameters
    ----------
    tags_of
        Returns the tags of a resource, by its type and its id or name.
    """
    action = f"{_SERVICES.get(call.action, 'ec2')}:{call.action}"
    if call.action.startswith(("Describe", "Get", "List")):
        yield Request(action, "*")
        return
    for kind, named in _RESOURCES[call.action]:
        if named is None:
            yield Request(action, _arn(kind, "*"), _given_tags(call.params, kind))
        for name, value in call.params.items():
            if named is not None and re.fullmatch(named, name):
                tags = {
                    f"aws:ResourceTag/{key}": text for key, text in tags_of(kind, value).items()
                }
                yield Request(action, _arn(kind, value), tags)
    for name, kind in call.params.items():
        if re.fullmatch(r"TagSpecification\.\d+\.ResourceType", name):
            yield Request("ec2:CreateTags", _arn(kind, "*"), {"ec2:CreateAction": call.action})
    if role := call.params.get("IamInstanceProfile.Name"):
        context = {"iam:PassedToService": "ec2.amazonaws.com"}
        yield Request("iam:PassRole", f"arn:aws:iam::123456789012:role/{role}", context)


def _given_tags(params: Mapping[str, str], kind: str) -> dict[str, str]:
    """Return the tags that a call gives to what it makes of a kind, as keys of conditions."""
    found = {}
    for name, value in params.items():
        if value == kind and name.endswith(".ResourceType"):
            begin = re.escape(name.removesuffix("ResourceType"))
            for key, tag in params.items():
                if re.fullmatch(rf"{begin}Tag\.\d+\.Key", key):
                    found[f"aws:RequestTag/{tag}"] = params[key.removesuffix("Key") + "Value"]
    return found


def _arn(kind: str, name: str) -> str:
    account = "" if kind in _WITHOUT_ACCOUNT else "123456789012"
    return f"arn:aws:ec2:us-east-1:{account}:{kind}/{name}"


def enforce(account: Account, policy: str) -> None:
    """Refuse what a policy does not allow, from now on."""
    owner = owner_of(account)

    def decide(call: Call, carry_out: Callable[[], Answer]) -> Answer:
        # Everybody may ask who they are.
        if call.who == OWNER or call.action == "GetCallerIdentity":
            return carry_out()
        for request in requests_of(call, lambda kind, name: _tags(owner, kind, name)):
            if not allows(policy, request):
                return denied(call)
        return carry_out()

    account.fault = decide


def owner_of(account: Account) -> Any:
    """Return a client of EC2 that no policy binds."""
    import boto3

    keys = {"aws_access_key_id": OWNER, "aws_secret_access_key": OWNER}
    return boto3.client("ec2", "us-east-1", endpoint_url=account.url, **keys)


def _tags(owner: Any, kind: str, resource: str) -> dict[str, str]:
    if kind == "key-pair":
        pairs = owner.describe_key_pairs()["KeyPairs"]
        tags = [each.get("Tags", []) for each in pairs if each["KeyName"] == resource]
    elif kind == "placement-group":
        with_any = [{"Name": "tag:jupyter-sky", "Values": ["*"]}]
        groups = owner.describe_placement_groups(Filters=with_any)["PlacementGroups"]
        tags = [each.get("Tags", []) for each in groups if each["GroupName"] == resource]
    else:
        by_id = [{"Name": "resource-id", "Values": [resource]}]
        tags = [owner.describe_tags(Filters=by_id)["Tags"]]
    return {tag["Key"]: tag["Value"] for some in tags for tag in some}
