"""Instances of EC2, as a stand-in of AWS has them: what we ask of it, and what our part takes.

Hosts of the lab boot in a tenth of a second. What AWS and its machines take comes on top of this.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from collections import Counter
from unittest.mock import patch

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.plugins import torch
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.spec import ClusterSpec
from tests.benchmarks.cases.machines import switched_on
from tests.benchmarks.measure import Row, spread
from tests.lab import missing

_NODES = 4
_ROUNDS = 3


def rented(peers: bool) -> list[Row]:
    """From a request to a formed group, and back to nothing."""
    if reason := missing():
        return [Row("instances of EC2", None, "", note=reason)]
    from tests.providers.aws.stand_in.account import Account
    from tests.providers.aws.stand_in.machines import Machines

    account = Account()
    ups, downs = [], []
    try:
        with switched_on(1) as lab, patch.dict(os.environ, account.environment):
            machines = Machines(lab, account)
            subnet = machines.subnet(Clients("us-east-1"))
            options = {"python": sys.executable, "user": "root", "addresses": "private"}
            provider = AWS(subnet=subnet, **options)
            # Types and prices are asked for once a week and a day.
            provider.check(ClusterSpec("measured", nodes=_NODES, cpus="4+"), [])
            for _ in range(_ROUNDS):
                account.calls.clear()
                up, down = _live(provider)
                ups.append(up)
                downs.append(down)
            machines.close()
    finally:
        account.close()
    calls = Counter(account.actions)
    most = ", ".join(f"{count} × {name}" for name, count in calls.most_common(3))
    return [
        Row(
            f"request to a formed group on {_NODES} instances, without their boot",
            statistics.median(ups),
            "s",
            note=spread(ups),
        ),
        Row("its end, until AWS says that all is gone", statistics.median(downs), "s"),
        Row("questions to AWS in that life, prices known", float(calls.total()), "", note=most),
    ]


def _live(provider: AWS) -> tuple[float, float]:
    """Return how long a cluster takes to come up and to go down."""
    wanted = ClusterSpec(name="measured", nodes=_NODES, cpus="4+")
    spec, runtime_env = assemble(wanted, [torch()])
    began = time.monotonic()
    cluster = Cluster.start(spec, provider, runtime_env)
    up = time.monotonic()
    cluster.down()
    return up - began, time.monotonic() - up
