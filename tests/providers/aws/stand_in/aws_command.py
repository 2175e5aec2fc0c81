"""What stands for ``aws ssm start-session``, as there is no Systems Manager here.

It reaches an instance's SSH server as the agent of Systems Manager does: from inside the instance.
No port has to be open for that. What it does not have: the service, its plugin, and the agent.

``python -S -E aws_command.py PLACE LAB ARGUMENTS``: PLACE is a folder where `calls` is written, and
where `trouble` says what goes wrong, on how many calls.
"""

from __future__ import annotations

import os
import re
import sys
import urllib.parse
import urllib.request
from pathlib import Path

_RELAY = Path(__file__).parents[3] / "lab" / "relay.py"
_ANSWER = "\nAn error occurred (%s) when calling the StartSession operation: %s\n"
_NOT_CONNECTED = ("TargetNotConnected", "%s is not connected.")


def main(place: Path, lab: Path, arguments: list[str]) -> int:
    """Start a session, or say what AWS's command line says, and return its status."""
    with (place / "calls").open("a") as calls:
        calls.write(" ".join(arguments) + "\n")
    wanted = ["ssm", "start-session", "--target"]
    how = ["--document-name", "AWS-StartSSHSession", "--parameters", "portNumber=22"]
    if arguments[:3] != wanted or arguments[4:8] != how:
        return fail("ParamValidation", "Invalid type for parameter")
    instance = arguments[3]
    trouble = place / "trouble"
    if trouble.exists():
        count, code, message = trouble.read_text().split(" ", 2)
        if int(count):
            new = place / f"trouble.{os.getpid()}"
            new.write_text(f"{int(count) - 1} {code} {message}")
            new.replace(trouble)
            return fail(code, message.replace("%s", instance))
    address = address_of(instance)
    for folder in lab.glob("lab*"):
        hosts = folder / "etc" / "hosts"
        if hosts.exists() and f"\n{address} {folder.name}\n" in hosts.read_text():
            pid = (folder / "pid").read_text() if (folder / "pid").exists() else "0"
            network = f"--net=/proc/{pid.strip()}/ns/net"
            if not Path(network.partition("=")[2]).exists():
                break
            words = ["nsenter", network, sys.executable, "-S", "-E", str(_RELAY), address, "22"]
            os.execvp("nsenter", [*words, str(place)])
    return fail(_NOT_CONNECTED[0], _NOT_CONNECTED[1] % instance)


def address_of(instance: str) -> str:
    """Ask the account for the private address of an instance."""
    body = {"Action": "DescribeInstances", "Version": "2016-11-15", "InstanceId.1": instance}
    request = urllib.request.Request(
        os.environ["AWS_ENDPOINT_URL"],
        urllib.parse.urlencode(body).encode(),
        {"Authorization": "AWS4-HMAC-SHA256 Credential=testing/20260101/us-east-1/ec2/x"},
    )
    with urllib.request.urlopen(request) as answer:
        found = re.search(r"<privateIpAddress>([^<]+)<", answer.read().decode())
    return found[1] if found else ""


def fail(code: str, message: str) -> int:
    """Say that AWS refuses it, as the command line does."""
    sys.stderr.write(_ANSWER % (code, message))
    return 254


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
