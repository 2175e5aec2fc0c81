"""Running shell scripts on a machine: the interface, and how they reach sh by any login shell."""

from __future__ import annotations

import contextlib
import json
import re
import shlex
from collections.abc import Callable
from typing import Any, Protocol

from jupyter_sky.formatting import last_line
from jupyter_sky.providers.ssh.connection.errors import HostError
from jupyter_sky.transport.bridge import END, MARK

ANSWER_WITHIN = 60.0
"""Seconds in which a command has to print something, unless it is known to take longer."""

INSTALL_WITHIN = 3600.0
"""The same for one that installs: CUDA has gigabytes, and nothing is printed while they come."""


UNSET = ("PYTHONHOME", "PYTHONPLATLIBDIR", "PYTHONIOENCODING")
"""Variables that no command of ours gets.

They are for another Python, with which ours does not start, and have ours write what nobody reads.
"""


# A single compound command, which the shell has read completely before the loop reads from the same
# input. The input ends with the connection; then the session's whole process group is ended.
_ENDING_WITH_INPUT = """{{
exec 3<&0
(
{script}
) </dev/null 3<&- &
work=$!
( while read -r line; do :; done; kill -TERM 0 ) <&3 >/dev/null 2>&1 &
watch=$!
wait $work
status=$?
kill $watch 2>/dev/null
exit $status
}}
"""

# A login script may read the first line, or start a shell that takes all data for commands.
_IF_OURS = """came=all
[ "$came $1" = "all ours" ] || { echo its commands went elsewhere >&2; exit 1; }
shift
"""

# What login scripts print comes before the first of these words, or behind the last.
_BEGIN = f"""printf %s {shlex.quote(MARK.decode())}
trap {shlex.quote(f"printf %s {shlex.quote(END.decode())}")} EXIT
unset {" ".join(UNSET)}
"""

_EVALUATED = """sh -c 'script=$(printf %b "$1"); shift; eval "$script"' sh '{}'"""


class HostShell(Protocol):
    """A way to run shell scripts on a machine: an SSH connection, or a scheduler's own."""

    @property
    def target(self) -> object:
        """The user's name for the machine."""

    def connect(self) -> object:
        """Make the connection, unless there is a working one.

        Raises
        ------
        HostError
            With the reason why that fails.
        """

    def run(
        self,
        script: str,
        data: bytes | None = None,
        within: float = ANSWER_WITHIN,
        sent: Callable[[int], None] = lambda count: None,
        ends_with_us: bool = False,
    ) -> str:
        """Run a script, like `SSHConnection.run`, and return its output."""


def script_with_input(script: str, data: bytes | None, ends_with_us: bool) -> tuple[str, bytes]:
    """Return a command of sh that runs a script, and its standard input.

    The arguments are as for `HostShell.run`.
    """
    script = f"{_BEGIN}{script}"
    if ends_with_us:
        script = _ENDING_WITH_INPUT.format(script=script)
    if data is None:
        return "sh -s ours", f"{_IF_OURS}{script}".encode()
    return script, data


def read_answer(said: str) -> Any:
    """Return the line of JSON in what a program of ours has printed.

    The start files of its Python may print something before it, and have more printed at its end.

    Raises
    ------
    HostError
        If there is none.
    """
    for line in reversed(said.splitlines()):
        if line.startswith(("{", "[")):
            with contextlib.suppress(ValueError):
                return json.loads(line)
    raise HostError(
        f"its Python does not print what it is asked for, but {last_line(said)!r}: do its start "
        "files, like sitecustomize.py, print something?"
    )


def for_login_shell(command: str) -> str:
    """Write a command of sh so that every login shell runs it.

    All take words in single quotes; but csh takes neither lines nor exclamation marks in them, and
    fish takes some backslashes away.
    """
    if command.isascii() and not re.search(r"[\n!\\]", command):
        return command
    escaped = (
        chr(byte) if 32 <= byte < 127 and byte not in b"'!\\" else f"\\0{byte:03o}"
        for byte in command.encode()
    )
    return _EVALUATED.format("".join(escaped))
