"""Runs the shell commands of an image on a host."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePosixPath

from jupyter_sky.formatting import format_command
from jupyter_sky.providers.ssh.connection.errors import CommandError, HostError
from jupyter_sky.providers.ssh.connection.host_shell import INSTALL_WITHIN, HostShell

# Into a file: a daemon left behind by the command would keep the connection open.
_SCRIPT = """
umask 077
mkdir -p {folder} && cd {folder} || exit
said=$(mktemp)
(
PATH={path}:$PATH
{variables}
{command}
) >"$said" 2>&1 </dev/null
status=$?
[ $status = 0 ] || tail -n 5 "$said" >&2
rm -f "$said"
exit $status
"""


def bootstrap(
    connection: HostShell,
    commands: Sequence[str],
    folder: str,
    python: str,
    env: Mapping[str, str],
    report: Callable[[str], None],
) -> None:
    """Run shell commands on a host, one after the other.

    Parameters
    ----------
    folder
        The folder to run them in; it is created if necessary.
    python
        The interpreter of the ranks; programs beside it are found first.
    env
        Variables of the ranks.

    Raises
    ------
    HostError
        With the last lines of the first command that fails.
    """
    variables = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in env.items())
    for command in commands:
        report(f"running {format_command(command)}")
        script = _SCRIPT.format(
            folder=shlex.quote(folder),
            path=shlex.quote(str(PurePosixPath(python).parent)),
            variables=variables,
            command=command,
        )
        try:
            connection.run(script, within=INSTALL_WITHIN, ends_with_us=True)
        except CommandError as error:
            raise HostError(f"{format_command(command)} failed: {error}") from None
