"""Errors of hosts. The messages do not name the host: the caller knows the user's name for it.

::

    SkyError
    ├── HostError           a host cannot be used
    │   ├── CommandError    a command failed there
    │   └── TurnedAway      its server has too many logins at this moment
    ├── HostKeyError        its key is not known, or not the known one
    └── LoginError          it accepts none of these keys
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import for_terminal

if TYPE_CHECKING:
    import paramiko

_MOST_LINES = 12


class HostError(SkyError):
    """A host cannot be used; what it says itself of that commands no terminal."""

    def __init__(self, reason: str) -> None:
        super().__init__(for_terminal(reason))


class CommandError(HostError):
    """A command failed on a host; the message has its last lines."""

    @classmethod
    def of_end(cls, status: int, lines: Sequence[str]) -> CommandError:
        """Return the error of a command that has printed these lines; of a signal, below 0."""
        end = f"a command ended with status {status}"
        if status < 0:
            end = "a command was killed, as by a system without memory: `dmesg` there says by whom"
        return cls("\n".join(lines[-_MOST_LINES:]) or end)

    @classmethod
    def of_silence(cls, seconds: float) -> CommandError:
        """Return the error of a command that has not ended, and printed nothing for so long."""
        return cls(f"a command said nothing for {seconds:.0f} s")


class TurnedAway(HostError):
    """The SSH server of a host, or of one on the way, has too many logins at this moment."""


class HostKeyError(SkyError):
    """The key of a host is not known, or not the known one."""


class LoginError(SkyError):
    """The host accepts none of these keys."""


def no_answer(seconds: float) -> str:
    """Return what is said of a host that has not answered for so long."""
    return (
        f"it has not answered for {seconds:.0f} s: is the machine on, and are you in its network?"
    )


def runs_nothing(said: str) -> str:
    """Return what is wrong with a login that does not run what it is given, from what it said."""
    shown = "".join(each for each in said.rstrip(".") if each.isprintable() and each != "\ufffd")
    return (
        f"its login shell runs no commands ({shown}): a file that it reads first, like ~/.bashrc, "
        "may end it, start another shell or read its input; else ask for a shell like /bin/sh for "
        "this user, or log in as another one"
    )


def not_led(jump: str, where: str, error: paramiko.SSHException) -> str:
    """Return why a jump host does not lead to a host."""
    import paramiko

    match getattr(error, "code", 0):
        case paramiko.common.OPEN_FAILED_ADMINISTRATIVELY_PROHIBITED:
            return (
                f"{jump} may not be jumped through, by its AllowTcpForwarding or PermitOpen: let "
                f"`ProxyCommand ssh {jump} nc %h %p` in ~/.ssh/config take the place of ProxyJump"
            )
        case paramiko.common.OPEN_FAILED_CONNECT_FAILED:
            return f"from {jump}, {where} cannot be reached: is the machine on?"
        case _:
            return f"{jump} does not lead to {where} ({error})"
