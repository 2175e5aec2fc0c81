"""A policy that is enforced: an account's calls are refused where it does not allow them.

Of IAM there is what such a policy needs: statements that allow, with the conditions
``aws:ResourceTag`` on what a call names, and ``ec2:CreateAction`` on the tags of what it makes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from fnmatch import fnmatch
from typing import Any

from tests.providers.aws.stand_in.account import Account, Answer, Call, refusal

OWNER = "owner"
"""The access key of who owns the account, and may do everything."""

_SERVICES = {"GetParameter": "ssm", "GetProducts": "pricing"}
_NAMES_RESOURCE = r"(GroupId|KeyName|GroupName|SnapshotId|VolumeId|ImageId)$|(\w+Id)\.\d+$"


def enforce(account: Account, policy: str) -> None:
    """Refuse what a policy does not allow, from now on."""
    account.fault = _Enforced(json.loads(policy)["Statement"], owner_of(account))


def owner_of(account: Account) -> Any:
    """Return a client of EC2 that no policy binds."""
    import boto3

    keys = {"aws_access_key_id": OWNER, "aws_secret_access_key": OWNER}
    return boto3.client("ec2", "us-east-1", endpoint_url=account.url, **keys)


class _Enforced:
    """Decides about calls: see `Fault`."""

    def __init__(self, statements: list[dict[str, Any]], owner: Any) -> None:
        self._statements = statements
        self._owner = owner

    def __call__(self, call: Call, carry_out: Callable[[], Answer]) -> Answer:
        if call.who == OWNER or self._allows(call):
            return carry_out()
        action = f"{_SERVICES.get(call.action, 'ec2')}:{call.action}"
        text = f"You are not authorized to perform: {action}"
        return refusal("UnauthorizedOperation", text, "403 Forbidden", action[:4] != "ec2:")

    def _allows(self, call: Call) -> bool:
        service = _SERVICES.get(call.action, "ec2")
        tagging = any(re.fullmatch(r"TagSpecification\.\d+\..*", name) for name in call.params)
        return self._has(f"{service}:{call.action}", call) and (
            not tagging or self._has("ec2:CreateTags", call, creating=call.action)
        )

    def _has(self, action: str, call: Call, creating: str | None = None) -> bool:
        return any(
            statement["Effect"] == "Allow"
            and statement["Resource"] == "*"
            and any(fnmatch(action, each) for each in statement["Action"])
            and self._holds(statement.get("Condition", {}), call, creating)
            for statement in self._statements
        )

    def _holds(self, condition: dict[str, Any], call: Call, creating: str | None) -> bool:
        for operator, wanted in condition.items():
            assert operator in ("StringEquals", "StringLike")
            for key, patterns in wanted.items():
                patterns = [patterns] if isinstance(patterns, str) else patterns
                for value in self._values(key, call, creating):
                    if value is None or not any(fnmatch(value, each) for each in patterns):
                        return False
        return True

    def _values(self, key: str, call: Call, creating: str | None) -> Iterator[str | None]:
        """Yield what has to fit; ``None`` where there is nothing."""
        if key == "ec2:CreateAction":
            yield creating
            return
        name = key.removeprefix("aws:ResourceTag/")
        assert name != key, f"no such condition: {key}"
        resources = [
            value for param, value in call.params.items() if re.match(_NAMES_RESOURCE, param)
        ]
        assert resources, call
        for resource in resources:
            yield self._tags(resource).get(name)

    def _tags(self, resource: str) -> dict[str, str]:
        """Return the tags of what has such an id, or of a key pair or placement group so named."""
        by_id = [{"Name": "resource-id", "Values": [resource]}]
        tags = [*self._owner.describe_tags(Filters=by_id)["Tags"]]
        for each in self._owner.describe_key_pairs()["KeyPairs"]:
            tags += each.get("Tags", []) * (each["KeyName"] == resource)
        with_any = [{"Name": "tag:jupyter-sky", "Values": ["*"]}]
        for each in self._owner.describe_placement_groups(Filters=with_any)["PlacementGroups"]:
            tags += each.get("Tags", []) * (each["GroupName"] == resource)
        return {tag["Key"]: tag["Value"] for tag in tags}
