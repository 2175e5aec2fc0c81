"""Instances that are reached by sessions of Systems Manager, with no port open to anybody.

There is no such service here: `stand_in/aws_command.py` stands for AWS's command line, and leads to
the SSH server of the instance from inside it. What is shown is ours: what is made and refused, what
the command line is asked for, and how it begins and ends.
"""

from __future__ import annotations

import json
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_sky.cluster.inventory import registry
from jupyter_sky.cluster.stopping.start import start_stopped
from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.providers.aws import AWS
from jupyter_sky.providers.aws.clients import Clients
from jupyter_sky.providers.aws.ec2 import login
from jupyter_sky.providers.aws.iam_policy import policy
from jupyter_sky.providers.aws.network import session
from tests.installed import on_first_use
from tests.lab import Lab
from tests.notebook.programs.terminal import run_command
from tests.providers.aws.conftest import Start
from tests.providers.aws.stand_in import aws_command, iam
from tests.providers.aws.stand_in.account import Account
from tests.providers.aws.stand_in.machines import Machines
from tests.providers.aws.starting import SPEC, provider
from tests.waiting import until

boto3 = on_first_use("boto3")

Left = Callable[[], list[str]]
PROFILE = "trainer"
NOT_CONNECTED = "TargetNotConnected %s is not connected."


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with programs, which is the only one on the path that has any of AWS's."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin:/usr/sbin:/sbin")
    return folder


@pytest.fixture
def place(tools: Path, lab: Lab) -> Path:
    """Where the command line writes what it is asked for; it is there from now on."""
    folder = tools / "sessions"
    folder.mkdir()
    (folder / "calls").touch()
    words = [sys.executable, "-S", "-E", aws_command.__file__, str(folder), str(lab.folder)]
    (tools / "aws").write_text(f'#!/bin/sh\nexec {" ".join(words)} "$@"\n')
    (tools / session._PLUGIN).write_text("#!/bin/sh\n")
    for each in ("aws", session._PLUGIN):
        (tools / each).chmod(0o755)
    return folder


@pytest.fixture
def profile(account: Account) -> Iterator[str]:
    """An instance profile that the account has."""
    made = boto3.client("iam", "us-east-1", endpoint_url=account.url)
    made.create_instance_profile(InstanceProfileName=PROFILE)
    yield PROFILE
    account.fault = None
    made.delete_instance_profile(InstanceProfileName=PROFILE)


def sessions(place: Path) -> list[psutil.Process]:
    """Return the sessions that are open."""
    found = []
    for each in psutil.process_iter(["cmdline"]):
        if str(place) in (each.info["cmdline"] or []):
            found.append(each)
    return found


def ingress(clients: Clients) -> list[dict[str, Any]]:
    groups = clients.ec2.describe_security_groups()["SecurityGroups"]
    ours = [each for each in groups if each["GroupName"].startswith("jupyter-sky-")]
    return [rule for group in ours for rule in group["IpPermissions"]]


# Before anything is made


def test_what_is_missing_is_refused_before_anything_is_made(
    account: Account, subnet: str, tools: Path
) -> None:
    account.calls.clear()
    asked = provider(subnet, ssm=True)
    with pytest.raises(UsageError, match="--ssm: machines need an instance profile .*Sky.aws = "):
        asked.check(SPEC, ())
    asked = provider(subnet, ssm=True, instance_profile=PROFILE)
    for refused in (lambda: asked.check(SPEC, ()), lambda: asked.plan(SPEC)):
        with pytest.raises(UsageError) as caught:
            refused()
        assert str(caught.value).startswith(
            "--ssm: aws and session-manager-plugin cannot be found on this computer: install AWS's "
            "command line (`pip install awscli`) and AWS's Session Manager plugin (docs.aws."
        )
    (tools / "aws").write_text("#!/bin/sh\n")
    (tools / "aws").chmod(0o755)
    with pytest.raises(UsageError, match="--ssm: session-manager-plugin cannot be found"):
        asked.check(SPEC, ())
    assert not [each for each in account.actions if not each.startswith(("Describe", "Get"))]
    for name, value in (("bastion", "gate"), ("ssh_from", "10.0.0.0/8")):
        with pytest.raises(UsageError, match=f"--ssm lets nobody in .* which {name} is"):
            provider(subnet, ssm=True, **{name: value})


def test_the_doctor_tells_what_is_missing(account: Account, tools: Path) -> None:
    def found(**settings: Any) -> list[tuple[str, str]]:
        # It comes first, and needs no answer of AWS's.
        first = next(AWS(region="us-east-1", **settings).diagnose())
        return [(first.found, first.fix)] if first.name == "sessions" else []

    assert found() == []
    [(what, fix)] = found(ssm=True)
    assert what == "cannot be started"
    assert "session-manager-plugin cannot be found on this computer: install" in fix
    assert "need an instance profile whose role has AmazonSSMManagedInstanceCore: name it" in fix
    for each in ("aws", session._PLUGIN):
        (tools / each).write_text("#!/bin/sh\n")
        (tools / each).chmod(0o755)
    assert found(ssm=True, instance_profile=PROFILE) == [("with the profile trainer", "")]
    assert '"ssm:StartSession"' in AWS(ssm=True).policy()


def test_a_terminal_is_told_the_file_of_a_setting(
    account: Account,
    tools: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "profile_default").mkdir()
    (tmp_path / "profile_default" / "ipython_config.py").write_text("c.Sky.aws = {'ssm': True}")
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    assert run_command("doctor", "--provider", "aws") == 1
    said = capsys.readouterr().out
    assert "`c.Sky.aws = {'instance_profile': 'my-profile'}` in ipython_config.py" in said
    assert "%config" not in said


def test_a_dry_run_says_that_nobody_gets_in(account: Account, subnet: str, place: Path) -> None:
    plan = provider(subnet, ssm=True, instance_profile=PROFILE).plan(SPEC)
    assert "no open port, SSH by Systems Manager, and nodes among themselves" in plan


# A cluster


def test_a_cluster_without_an_open_port(
    start: Start,
    machines: Machines,
    account: Account,
    clients: Clients,
    place: Path,
    profile: str,
    left: Left,
) -> None:
    machines.guard()  # who is not named in a security group gets no answer
    iam.enforce(account, policy(PROFILE, ssm=True))
    (place / "trouble").write_text(f"3 {NOT_CONNECTED}")
    said: list[object] = []
    cells = start(1, framework=False, say=said.append, ssm=True, instance_profile=PROFILE)
    assert "boot and to connect to Systems Manager" in str(said)
    cells.run("import socket; kept = socket.gethostname()")
    # As `%sky scale` has it in a kernel where nothing of that is set.
    cells.cluster.scale(2, AWS(user="root", python=sys.executable))
    assert cells.ask("1 + 1") == [2, 2]
    ran = [call.params for call in account.calls if call.action == "RunInstances"]
    assert [each["IamInstanceProfile.Name"] for each in ran] == [PROFILE] * 2
    account.fault = None
    [among] = ingress(clients)
    assert among["IpRanges"] == []
    assert [pair["GroupId"] for pair in among["UserIdGroupPairs"]]
    for host in machines.hosts.values():
        assert "DROP" in host.run("iptables", "-S")
    calls = (place / "calls").read_text().splitlines()
    how = "--document-name AWS-StartSSHSession --parameters portNumber=22 --region us-east-1"
    assert {*calls} == {f"ssm start-session --target {each} {how}" for each in machines.hosts}
    # A session that breaks is started again.
    for each in sessions(place):
        each.kill()
    cells.run("kept = 2")
    assert len(sessions(place)) == 2
    # Its machines are found in the same way when they are started again.
    cells.cluster.power.stop(cells.cluster.power.check_stop())
    until(lambda: not sessions(place))
    row = registry.find(cells.cluster.name)
    assert row is not None
    plain = AWS(user="root", python=sys.executable)
    again = start_stopped(row, registry.recorded_spec(row), plain, cells.cluster.runtime_env)
    assert len(sessions(place)) == 2
    again.down()
    until(lambda: not sessions(place))
    assert left() == []


def test_a_profile_of_the_user_is_handed_on() -> None:
    command = session.command("i-0f", "eu-west-1", "my team")
    assert command.endswith("--region eu-west-1 --profile 'my team'")


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        (NOT_CONNECTED, r"An error occurred \(TargetNotConnected\) .* i-\w+ is not connected\.\)"),
        ("AccessDeniedException User: x is not authorized", r"is not authorized\): does the role"),
    ],
)
def test_what_keeps_a_session_from_coming_about_is_told(
    start: Start,
    place: Path,
    profile: str,
    left: Left,
    monkeypatch: pytest.MonkeyPatch,
    trouble: str,
    said: str,
) -> None:
    if trouble == NOT_CONNECTED:
        monkeypatch.setattr(login, "LOGIN_WITHIN", 3.0)  # else five minutes, as it may boot
    (place / "trouble").write_text(f"1000 {trouble}")
    with pytest.raises(SkyError, match=said) as caught:
        start(1, framework=False, ssm=True, instance_profile=PROFILE)
    assert "its session of Systems Manager ended with status 254" in str(caught.value)
    assert "`%sky doctor --provider aws`" in str(caught.value)
    assert left() == []
    assert not sessions(place)


def test_a_stop_while_it_hangs_leaves_no_session(
    start: Start, tools: Path, place: Path, profile: str, left: Left
) -> None:
    here = place / "id"
    (tools / "aws").write_text(f"#!/bin/sh\necho $$ >{here}\nexec sleep 600\n")

    def stop() -> None:
        until(lambda: here.exists() and here.read_text())
        signal.raise_signal(signal.SIGINT)

    stopper = threading.Thread(target=stop)
    stopper.start()
    with pytest.raises(KeyboardInterrupt):
        start(1, framework=False, ssm=True, instance_profile=PROFILE)
    stopper.join()
    assert not psutil.pid_exists(int(here.read_text()))
    assert left() == []


# The policy

INSTANCE = "arn:aws:ec2:us-east-1:123456789012:instance/i-0f"
DOCUMENT = "arn:aws:ssm:us-east-1::document/AWS-StartSSHSession"
SESSION = "arn:aws:ssm:us-east-1:123456789012:session/ada-0f"
ME = "AROAEXAMPLE:ada"


def allows(action: str, resource: str, ssm: bool = True, **context: str) -> bool:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in context.items()}
    where = {"aws:userid": ME, **{f"ssm:{key}": value for key, value in named.items()}}
    return iam.allows(policy(PROFILE, ssm=ssm), iam.Request(action, resource, where))


def test_the_policy_allows_sessions_with_our_instances_to_the_port_of_ssh() -> None:
    ours = {"resourceTag__jupyter_sky": "0123abcd"}
    checked = {"SessionDocumentAccessCheck": "true"}
    assert allows("ssm:StartSession", INSTANCE, **ours, **checked)
    assert allows("ssm:StartSession", INSTANCE, **ours), "where AWS does not say that it checks"
    assert allows("ssm:StartSession", DOCUMENT, **checked)
    assert not allows("ssm:StartSession", INSTANCE, **checked), "another's"
    assert not allows("ssm:StartSession", INSTANCE, resourceTag__team="vision")
    for other in ("SSM-SessionManagerRunShell", "AWS-StartInteractiveCommand"):
        assert not allows("ssm:StartSession", DOCUMENT.replace("AWS-StartSSHSession", other))
    # Without naming a document, a session would be a shell of root's.
    assert not allows("ssm:StartSession", INSTANCE, **ours, SessionDocumentAccessCheck="false")
    for action, where in (("ssm:SendCommand", INSTANCE), ("ssm:StartSession", "*")):
        assert not allows(action, where, **ours)


@pytest.mark.parametrize("action", ["ssm:ResumeSession", "ssm:TerminateSession"])
def test_the_policy_allows_own_sessions_to_be_ended(action: str) -> None:
    tag = "ssm:resourceTag/aws:ssmmessages:session-id"

    def may(who: str, ssm: bool = True) -> bool:
        request = iam.Request(action, SESSION, {"aws:userid": ME, tag: who})
        return iam.allows(policy(PROFILE, ssm=ssm), request)

    assert may(ME)
    assert not may("AROAEXAMPLE:eve")
    assert not may(ME, ssm=False)


def test_a_policy_for_who_wants_no_sessions_has_none() -> None:
    assert not [each for each in json.loads(policy())["Statement"] if "Session" in str(each)]
    assert not allows("ssm:StartSession", DOCUMENT, ssm=False)


def test_the_setting_is_a_switch() -> None:
    assert AWS(ssm=True).ssm
    with pytest.raises(UsageError, match="type ssm=True or ssm=False"):
        AWS(ssm="yes")  # type: ignore[arg-type]
