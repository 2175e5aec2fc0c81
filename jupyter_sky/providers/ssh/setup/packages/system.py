"""System packages of a host, by apt."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence

from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import INSTALL_WITHIN, HostShell
from jupyter_sky.providers.ssh.setup.facts import HostFacts
from jupyter_sky.providers.ssh.setup.packages.failures import indented


def install_system(
    connection: HostShell, facts: HostFacts, packages: Sequence[str], report: Callable[[str], None]
) -> None:
    """Install system packages on a host, unless they are installed.

    Raises
    ------
    HostError
        With the last lines, if they cannot be installed.
    """
    if not packages:
        return
    report(f"installing {', '.join(packages)}")
    words = shlex.join(packages)
    sudo = "" if facts.user == 0 else "sudo -n "
    try:
        connection.run(
            f"""
            dpkg-query --show {words} >/dev/null 2>&1 && exit
            export DEBIAN_FRONTEND=noninteractive
            {sudo}apt-get update --quiet=2 </dev/null &&
                {sudo}apt-get install --quiet=2 --no-install-recommends {words} </dev/null
            """,
            within=INSTALL_WITHIN,
        )
    except CommandError as error:
        raise HostError(f"`{sudo}apt-get install {words}` failed:\n    {indented(error)}") from None
