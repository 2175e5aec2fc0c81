"""Something goes wrong at one call to AWS: of a launch and its end, of growth, of nodes that leave.

What counts is what is left then: instances that run although nobody needs them, how long they can
go on by themselves, and what there is after ``%sky gc``.
"""

from __future__ import annotations

import os
import re
import signal
import sys
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from unittest.mock import patch

from jupyter_sky.api.assemble import assemble
from jupyter_sky.cluster.cluster import Cluster
from jupyter_sky.cluster.inventory import cloud_resources, registry
from jupyter_sky.cluster.inventory.probe import ProbePhase, probe
from jupyter_sky.cluster.runtime_env import RuntimeEnv
from jupyter_sky.cluster.stopping.start import start_stopped
from jupyter_sky.errors import SkyError
from jupyter_sky.paths import home
from jupyter_sky.providers.aws import AWS, rented
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.network import access
from jupyter_sky.providers.spec import ClusterSpec
from tests.cluster.cells import Cells
from tests.forks import forks_with
from tests.providers.aws.stand_in.account import Account, Answer, Call, CutConnection, refusal
from tests.providers.aws.stand_in.faults import denied
from tests.providers.aws.stand_in.leftovers import find_resources
from tests.providers.aws.starting import SPEC, Booting, start

FAULTS = ("denied for ever", "lost answer", "killed before", "killed after", "throttled")

READS = ("Describe", "Get")
"""How calls begin that change nothing: before and after are the same for them."""

_ATTEMPTS = 4

LONGEST = 900
"""Seconds that an instance may run which nobody has ended."""

LAUNCH = [
    "DescribeSubnets",
    "ImportKeyPair",
    "CreateSecurityGroup",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupIngress",
    "AuthorizeSecurityGroupEgress",
    "CreatePlacementGroup",
    "DescribeImages",
    "GetParameter",
    "DescribeImages",
    "RunInstances",
    "DescribeInstances",
]
"""What launching asks of AWS, once types and prices are known."""

LOOK = [
    "DescribeInstances",
    "DescribeSpotInstanceRequests",
    "DescribeVolumes",
    "DescribeSecurityGroups",
    "DescribeKeyPairs",
    "DescribePlacementGroups",
]
END = [
    "TerminateInstances",
    *LOOK,
    "DeleteKeyPair",
    "DeleteSecurityGroup",
    "DeletePlacementGroup",
    *LOOK,
]
GROWTH = [
    "DescribeSecurityGroups",
    "DescribeInstances",
    "DescribeVolumes",
    "DescribeSubnets",
    "DescribeSecurityGroups",
    "DescribePlacementGroups",
    "DescribeImages",
    "RunInstances",
    "DescribeInstances",
]
"""What another node asks of AWS, in a cluster of one to which nobody was connected."""

LEAVING = ["TerminateInstances", "DescribeInstances"]
"""What a node that leaves asks of AWS."""

STOP = ["DescribeVolumes", "ModifyInstanceAttribute", "StopInstances"]
"""What stopping a cluster of one node asks of AWS, once the price of disks is known."""

START = [
    "DescribeInstances",
    "DescribeInstances",
    "DescribeVolumes",
    "DescribeSecurityGroups",
    "StartInstances",
    "DescribeInstances",
    "ModifyInstanceAttribute",
]
"""What starting it again asks."""


def is_different(action: str, fault: str) -> bool:
    """Return whether a fault at a call is another one than the others of the table."""
    return fault != "killed after" or not action.startswith(READS)


@dataclass
class At:
    """What goes wrong at a call, counted from 1; an `Account.fault`."""

    number: int
    fault: str
    kill: Callable[[], None] = lambda: None
    action: str = ""
    times: int = 0

    def __call__(self, call: Call, carry_out: Callable[[], Answer]) -> Answer:
        """Decide what becomes of a call."""
        if call.number == self.number:
            self.action = call.action
        if self.fault == "denied for ever":
            return denied(call) if call.action == self.action else carry_out()
        # A call that is made again has another number.
        again = self.fault == "throttled" and call.action == self.action and 0 < self.times < 2
        if not again and call.number != self.number:
            return carry_out()
        self.times += 1
        if self.fault == "throttled":
            json_spoken = call.action in ("GetParameter", "GetProducts")
            text = "Request limit exceeded."
            return refusal("RequestLimitExceeded", text, "503 Unavailable", json_spoken)
        if self.fault != "killed before":
            carry_out()
        if self.fault.startswith("killed"):
            self.kill()
        raise CutConnection


@dataclass(frozen=True)
class Outcome:
    """What has become of it.

    Attributes
    ----------
    action
        The call at which it went wrong.
    told
        What the user was told; empty where nothing was in the way.
    running, beyond
        Number of instances that ran for nobody then, and of those for longer than `LONGEST`.
    left
        What was left after ``%sky gc``, with nothing going wrong any longer.
    """

    action: str
    told: str
    running: int
    beyond: int
    left: list[str] = field(default_factory=list)


class Killed(Exception):
    """The process that did it was killed."""


@dataclass
class Scenes:
    """Does the same again and again, with something else going wrong.

    Parameters
    ----------
    subnet
        Where clusters start whose machines never boot.
    """

    account: Account
    clients: Clients
    subnet: str

    def life(self, number: int, fault: str) -> Outcome:
        """Start a cluster and give it back, which is what a launch does that fails at its end."""
        return self._watch(number, fault, lambda: start(self.subnet), _life, (self.subnet,), 0)

    def scale(self, name: str, nodes: int, number: int, fault: str) -> Outcome:
        """Give a cluster that is up another number of nodes; then it has one, as before."""
        action = (GROWTH if nodes > 1 else LEAVING)[number - 1]
        for _ in range(_ATTEMPTS):
            outcome = self._scale(name, nodes, number, fault)
            # Who has just left may have been asked about meanwhile, which is counted too.
            if outcome.action == action or outcome.beyond or outcome.left:
                break
            if nodes == 1:
                self.grown(name)
        return outcome

    def _scale(self, name: str, nodes: int, number: int, fault: str) -> Outcome:
        arguments = (name, nodes)
        outcome = self._watch(number, fault, None, _scale, arguments, nodes)
        row = registry.find(name)
        assert row is not None, "a cluster that was up before is up"
        if len(row.machines) > 1:
            scale(name, 1)
        return outcome

    def grown(self, name: str) -> None:
        """Have a cluster two nodes, as if it had started so."""
        scale(name, 2)
        self.account.calls.clear()

    def stop(self, name: str, number: int, fault: str) -> Outcome:
        """Stop a cluster that is up; then it is up, as before."""
        return self._switch(name, False, number, fault)

    def start(self, name: str, number: int, fault: str) -> Outcome:
        """Start a stopped cluster again; then it is up."""
        return self._switch(name, True, number, fault)

    def _switch(self, name: str, on: bool, number: int, fault: str) -> Outcome:
        action = (START if on else STOP)[number - 1]
        for _ in range(_ATTEMPTS):
            self._turn(name, not on)
            outcome = self._watch(number, fault, None, _turn, (name, on), 1)
            # Whose account it is may have been asked for, which is counted too.
            if outcome.action == action or outcome.beyond or outcome.left:
                break
        # What was on the disk is there, whatever has happened.
        self._turn(name, on=True)
        return replace(outcome, left=[*outcome.left, *(["the disk is lost"] * (not _kept(name)))])

    def _turn(self, name: str, on: bool) -> None:
        row = registry.find(name)
        assert row is not None, "a cluster that was there before is there"
        [now] = probe([row], {AWS.name: AWS()})
        if (now.phase is ProbePhase.IDLE) != on:
            turn(name, on)

    def _watch(
        self,
        number: int,
        fault: str,
        function: Callable[[], None] | None,
        in_process: Callable[..., None],
        arguments: tuple[object, ...],
        wanted: int,
    ) -> Outcome:
        account, told = self.account, ""
        account.forget_ended()
        at = At(number, fault)
        before = set(self._running())
        account.calls.clear()
        account.fault = at
        try:
            if function is None or fault.startswith("killed"):
                _in_process(at, in_process, arguments)
            else:
                function()
        except Booting:
            pass
        except (SkyError, Killed) as error:
            told = str(error) or "killed"
        finally:
            account.fault = None
        switches = self._switches()
        new = switches.keys() - before
        # With nothing in the way, what has come is what was wanted.
        unwanted = sorted(new) if told or not wanted else []
        beyond = [each for each in unwanted if switches[each] > LONGEST]
        # The stand-in finds at once what it has made, which AWS may not do for a minute.
        with patch.object(rented, "KNOWN_WITHIN", 1.0):
            for rental in cloud_resources.find()[0]:
                if rental.is_orphaned:
                    rental.remove()
        return Outcome(at.action, told, len(unwanted), len(beyond), self._left())

    def _left(self) -> list[str]:
        """Return what is there beside a cluster that is up."""
        up = [row for row in registry.rows() if row.name != SPEC.name]
        names = {row.id for row in up}
        known = {each["id"] for row in up for each in row.machines}
        left = [each for each in self._running() if each not in known]
        left += [row.name for row in registry.rows() if row.id not in names]
        keys = [each.name for each in (home() / "aws" / "keys").glob("*")]
        left += [f"keys of {each}" for each in keys if each not in names]
        return left + [str(each) for each in find_resources(self.clients) if each.id not in names]

    def _running(self) -> list[str]:
        alive = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        found = self.clients.ec2.describe_instances(Filters=alive)["Reservations"]
        return [each["InstanceId"] for some in found for each in some["Instances"]]

    def _switches(self) -> dict[str, int]:
        """Within how many seconds instances end by themselves that nobody makes nodes of."""
        found = {}
        for each in self._running():
            said = self.clients.ec2.describe_instance_attribute(
                InstanceId=each, Attribute="userData"
            )
            text = b64decode(said["UserData"].get("Value", "")).decode()
            waits = re.search(r"first=(\d+)", text)
            found[each] = int(waits[1]) if waits else sys.maxsize
        return found


def scale(name: str, nodes: int) -> None:
    """Scale a cluster to which nobody is connected, and leave it, as another kernel would."""
    access._known.clear()
    row = registry.find(name)
    assert row is not None
    provider = AWS(user="root", python=sys.executable)
    _, runtime_env = assemble(ClusterSpec(name), [])
    cluster = Cluster.attach(row, provider, runtime_env)
    assert cluster is not None, "it is up"
    try:
        cluster.scale(nodes, provider)
    finally:
        cluster.close()


def turn(name: str, on: bool) -> None:
    """Start a stopped cluster or stop one that is up, to which nobody is connected."""
    access._known.clear()
    row = registry.find(name)
    assert row is not None
    provider = AWS(user="root", python=sys.executable)
    spec, runtime_env = assemble(registry.recorded_spec(row), [])
    if on:
        start_stopped(row, spec, provider, runtime_env).close()
        return
    cluster = Cluster.attach(row, provider, runtime_env)
    assert cluster is not None, "it is up"
    cluster.power.stop(cluster.power.check_stop())


def put(name: str) -> None:
    """Write something to the disk of a cluster that is up."""
    _ask(name, f"open({_FILE!r}, 'w').write({name!r})")


def _kept(name: str) -> bool:
    return bool(_ask(name, f"open({_FILE!r}).read() == {name!r}"))


_FILE = "kept"


def _ask(name: str, expression: str) -> object:
    row = registry.find(name)
    assert row is not None
    cluster = Cluster.attach(row, AWS(), RuntimeEnv({}))
    assert cluster is not None, "it is up"
    try:
        return Cells(cluster).ask(expression)[0]
    finally:
        cluster.close()


def _in_process(at: At, function: Callable[..., None], arguments: tuple[object, ...]) -> None:
    """Call a function in a process of its own, which may be killed."""
    forks = forks_with("tests.providers.aws.stand_in.warm")
    child = forks.Process(target=function, args=(dict(os.environ), *arguments))
    at.kill = lambda: os.kill(child.pid or 0, signal.SIGKILL)
    (home() / "told").unlink(missing_ok=True)
    child.start()
    child.join()
    if (home() / "told").exists():
        raise SkyError((home() / "told").read_text())
    if child.exitcode == -signal.SIGKILL:
        raise Killed
    assert child.exitcode == 0, f"it ended with {child.exitcode}"


def _life(variables: dict[str, str], subnet: str) -> None:
    _take_up(variables)
    try:
        start(subnet)
    except SkyError:
        return


def _turn(variables: dict[str, str], name: str, on: bool) -> None:
    _take_up(variables)
    try:
        turn(name, on)
    except SkyError as error:
        (home() / "told").write_text(str(error))


def _scale(variables: dict[str, str], name: str, nodes: int) -> None:
    _take_up(variables)
    try:
        scale(name, nodes)
    except SkyError as error:
        (home() / "told").write_text(str(error))


def _take_up(variables: dict[str, str]) -> None:
    """Have these variables: who forks such processes may be there from an earlier test."""
    os.environ.clear()
    os.environ.update(variables)
