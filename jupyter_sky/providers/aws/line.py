"""The line to an instance: we know its address, the key that lets in, and the key that it shows.

Nothing about it is in the person's ``~/.ssh/config`` and ``known_hosts``, and nothing is put there.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from jupyter_sky.providers.aws.keys import Keys
from jupyter_sky.providers.ssh import line as ssh
from jupyter_sky.providers.ssh.config import Login
from jupyter_sky.providers.ssh.hosts import Target, parse_one

if TYPE_CHECKING:
    import paramiko


class InstanceLine(ssh.Line):
    """A line whose login is known.

    Parameters
    ----------
    target
        The instance: its user and address.
    way
        How to log in.
    """

    def __init__(self, target: Target, way: Login) -> None:
        super().__init__(target)
        self._way = way

    def connect(self) -> paramiko.Transport:
        """Return the connection, as one that works; see `jupyter_sky.providers.ssh.line.Line`."""
        with self._lock:
            if self._transport is not None and not self._works(self._transport):
                self._transport.close()
                self._transport = None
            if self._transport is None:
                self._transport = ssh._connect(self._way)
            self._suspect = False
            return self._transport


def know(host: str, keys: Keys, bastion: str | None) -> ssh.Line:
    """Have an instance reached with the keys of its cluster from now on, and return the line.

    Parameters
    ----------
    host
        ``USER@ADDRESS``.
    bastion
        A host of the person's to go through.
    """
    target = parse_one(host)
    way = Login(
        address=target.name,
        port=22,
        user=target.user or "root",
        key_name=target.name,
        identity_files=(keys.private,),
        certificates=(),
        only_these=True,
        use_agent=False,
        jumps=(bastion,) if bastion else (),
        proxy_command=None,
        known_hosts=(Path(keys.known_hosts),),
    )
    place = (str(target), ())
    there = ssh.lines._lines.get(place)
    if not isinstance(there, InstanceLine) or there._way != way:
        if there is not None:
            there.close()
        ssh.lines._lines[place] = InstanceLine(target, way)
    return ssh.lines._lines[place]
