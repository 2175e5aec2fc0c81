"""Logging in to instances, with the keys of their cluster."""

from __future__ import annotations

import time
from collections.abc import Callable

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys
from jupyter_sky.providers.aws.ec2.user_data import beat_script, renew_host_key_script
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import HostError, HostKeyError
from jupyter_sky.providers.ssh.connection.ssh_config import Login
from jupyter_sky.providers.ssh.connection.targets import parse_one

LOGIN_WITHIN = 300.0
"""Seconds for an instance to let us in, once AWS says that it runs."""

RENEWED_WITHIN = 15.0
"""Seconds for its SSH server to show a new host key."""

_PAUSE = 0.5


def wait_for_login(
    host: str,
    keys: ClusterKeys,
    bastion: str | None,
    report: Callable[[str], None],
    renewed: bool = False,
    count: int = 1,
) -> None:
    """Wait until an instance lets us in.

    Parameters
    ----------
    host, bastion
        As in `connection_to`.
    report
        Called with what goes on; raising from it ends the wait.
    renewed
        Whether its host key was renewed a moment ago, so that it may still show the old one.
    count
        Number of instances that are waited for at the same time.

    Raises
    ------
    HostError
        When it does not let us in, or another machine answers in its place.
    """
    connection = connection_to(host, keys, bastion)
    start = time.monotonic()
    while True:
        # One line for all of them, however often each is tried.
        if count > 1:
            what = "show their new keys" if renewed else "boot"
            report(f"waiting for {count} instances to {what}")
        else:
            report(f"waiting for {host} to {'show its new key' if renewed else 'boot'}")
        try:
            connection.connect()
            return
        except SkyError as error:
            patience = LOGIN_WITHIN
            if isinstance(error, HostKeyError):
                patience = RENEWED_WITHIN if renewed else 0.0
            if time.monotonic() - start > patience:
                raise HostError(f"{host} refuses the login: {error}") from None
        time.sleep(_PAUSE)


def renew_host_key(host: str, keys: ClusterKeys, bastion: str | None) -> str:
    """Give an instance a host key that no other machine has seen, and return its public half."""
    connection = connection_to(host, keys, bastion)
    try:
        key = connection.run(renew_host_key_script()).split()
    finally:
        connection.close()
    return " ".join(key[:2])


def send_beat(host: str, keys: ClusterKeys, bastion: str | None) -> None:
    """Tell an instance to stay, as a node is made of it."""
    connection_to(host, keys, bastion).run(beat_script())


def connection_to(host: str, keys: ClusterKeys, bastion: str | None) -> SSHConnection:
    """Return the connection to an instance, which uses the keys of its cluster from now on.

    Parameters
    ----------
    host
        ``USER@ADDRESS``.
    bastion
        A host of the user's to go through.
    """
    target = parse_one(host)
    login = Login(
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
    return pool.set_login(target, login)
