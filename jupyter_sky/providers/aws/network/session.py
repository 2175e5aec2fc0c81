"""Sessions of AWS Systems Manager: a way to instances with no open port and no public address.

The AWS command line starts a session, and its plugin carries the data; the SSM agent on the
instance, which polls the service, connects it to the SSH server there.
"""

from __future__ import annotations

import re
import shlex
import shutil

from jupyter_sky.errors import UsageError

DOCUMENT = "AWS-StartSSHSession"
"""What the session does: it leads to the port of SSH."""

NAME = "session of Systems Manager"
ADVICE = (
    "does the role of its instance profile have AmazonSSMManagedInstanceCore, and what does "
    "`%sky doctor --provider aws` say?"
)

_PLUGIN = "session-manager-plugin"
_INSTALL = {
    "aws": "AWS's command line (`pip install awscli`)",
    _PLUGIN: "AWS's Session Manager plugin (docs.aws.amazon.com/systems-manager/latest/userguide/"
    "session-manager-working-with-install-plugin.html)",
}
# What waiting does not mend: an error of AWS's that is not about a service which is busy or an
# agent which has not started, or no program to run.
_FINAL = re.compile(
    r"An error occurred \((?!TargetNotConnected|Throttling|InternalServer|ServiceUnavailable)"
    r"|SessionManagerPlugin is not found|Unable to locate credentials|status 127"
)


def missing_tools() -> str | None:
    """Return what this computer lacks for sessions, and how to get it."""
    missing = [each for each in _INSTALL if shutil.which(each) is None]
    if not missing:
        return None
    install = " and ".join(_INSTALL[each] for each in missing)
    return f"{' and '.join(missing)} cannot be found on this computer: install {install}"


def check_tools() -> None:
    """Raise an error if the tools for sessions are missing.

    Raises
    ------
    UsageError
        With what to install.
    """
    if missing := missing_tools():
        raise UsageError(f"--ssm: {missing}.")


def command(instance: str, region: str, profile: str | None) -> str:
    """Return the command whose input and output are connected to an instance's SSH server."""
    words = ["aws", "ssm", "start-session", "--target", instance, "--document-name", DOCUMENT]
    words += ["--parameters", "portNumber=22", "--region", region]
    return shlex.join(words + (["--profile", profile] if profile else []))


def is_final(trouble: str) -> bool:
    """Return whether waiting is of no use, by what a session has said that did not come about."""
    return bool(_FINAL.search(trouble))
