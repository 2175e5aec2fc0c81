"""The quotas of an account: how many processors may run, and how many do."""

from __future__ import annotations

from dataclasses import dataclass

from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.errors import AWSError, explain_errors
from jupyter_sky.providers.aws.market.instance_types import InstanceType, catalog

_ALIVE = {"Name": "instance-state-name", "Values": ["pending", "running"]}


@dataclass(frozen=True)
class QuotaUse:
    """How much of a quota a cluster would take.

    Attributes
    ----------
    name
        AWS's own.
    needed, used
        Processors that the cluster has, and those that run already.
    most
        What the account may have; ``None`` where AWS does not tell.
    why
        Why it does not.
    """

    name: str
    needed: int
    used: int
    most: float | None
    why: str = ""

    @property
    def is_met(self) -> bool:
        """Whether the cluster is within it, as far as that is known."""
        return self.most is None or self.used + self.needed <= self.most

    def __str__(self) -> str:
        use = f"{self.needed} vCPUs are needed, and {self.used} run"
        if self.most is None:
            return f"{self.name}: {use}; the quota is not known ({self.why.rstrip('.')})"
        enough = "" if self.is_met else ": ask for more at Service Quotas in the AWS console"
        return f"{self.name}: {use}, of {self.most:g}{enough}"


def quota_use(clients: Clients, kind: InstanceType, nodes: int, spot: bool) -> QuotaUse:
    """Return how much of its quota so many instances of a type would take."""
    name = kind.quota(spot)
    known = catalog(clients).types
    used = 0
    with explain_errors():
        pages = clients.ec2.get_paginator("describe_instances").paginate(Filters=[_ALIVE])
        for each in pages.search("Reservations[].Instances[]"):
            other = known.get(each["InstanceType"])
            is_spot = each.get("InstanceLifecycle") == "spot"
            if other is not None and other.quota(is_spot) == name:
                used += other.cpus
    most, why = None, "AWS does not list it"
    try:
        with explain_errors():
            pages = clients.quotas.get_paginator("list_service_quotas").paginate(ServiceCode="ec2")
            for each in pages.search("Quotas[]"):
                if each["QuotaName"] == name:
                    most = float(each["Value"])
    except AWSError as error:
        why = str(error)
    return QuotaUse(name, nodes * kind.cpus, used, most, why)
