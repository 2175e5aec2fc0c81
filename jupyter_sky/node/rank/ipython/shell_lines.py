"""Programs that lines of a cell start, like ``!cmd``, ``!!cmd`` and ``%%bash``.

They are not of the rank's group: with its variables, they would wait for its peers or take its
port. Where the head is they are told, as a torchrun on each node has to know it.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from functools import wraps
from typing import Any

from IPython.core.magics.script import ScriptMagics
from IPython.utils.process import arg_split

from jupyter_sky.serialization.process.rank_variables import for_others

__tracebackhide__ = True

_NETWORK = ("MASTER_ADDR", "GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME")
"""How nodes reach each other, whatever program it is for."""


def run(command: str) -> int:
    """Run a command, which writes to the rank's own streams, and return its exit status."""
    return subprocess.call(command, shell=True, executable=_shell(), env=_environment())


def output(command: str) -> str:
    """Run a command, and return what it prints."""
    return subprocess.run(
        command,
        shell=True,
        executable=_shell(),
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
    ).stdout


class RankScriptMagics(ScriptMagics):  # type: ignore[misc, unused-ignore]
    """``%%script``, and those that are named after a program, like ``%%bash``."""

    @wraps(ScriptMagics.shebang)
    def shebang(self, line: str, cell: str) -> Any:
        """Run a cell with a program; IPython takes no environment for it."""
        _, command = ScriptMagics.shebang.parser.parse_known_args(arg_split(line))
        is_found = bool(command) and shutil.which(command[0]) is not None
        try:
            return super().shebang(f"{_setting_environment()} {line}" if is_found else line, cell)
        except subprocess.CalledProcessError as error:
            # IPython leaves out its own calls, and would show this one as where it failed.
            error.__traceback__ = None
            raise


def _shell() -> str | None:
    return os.environ.get("SHELL")


def _environment() -> dict[str, str]:
    own = dict(os.environ)
    return for_others() | {name: own[name] for name in _NETWORK if name in own}


def _setting_environment() -> str:
    """Return the beginning of a line that starts a program with another environment than ours."""
    own, env = dict(os.environ), _environment()
    words = [f"-u{name}" for name in own if name not in env]
    words += [f"{name}={value}" for name, value in env.items() if own.get(name) != value]
    return shlex.join(["env", *words] if words else [])
