"""The line to an instance: we know its address, the key that lets in, and the key that it shows.

Nothing about it is in the person's ``~/.ssh/config`` and ``known_hosts``, and nothing is put there.
"""

from __future__ import annotations

from jupyter_sky.providers.aws.keys import Keys
from jupyter_sky.providers.ssh.config import Login
from jupyter_sky.providers.ssh.hosts import parse_one
from jupyter_sky.providers.ssh.line import Line, lines


def know(host: str, keys: Keys, bastion: str | None) -> Line:
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
        known_hosts=(keys.known_hosts,),
    )
    return lines.put(target, way)
