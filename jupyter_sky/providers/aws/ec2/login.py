"""Logging in to instances, with the keys of their cluster."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import clients_at
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys
from jupyter_sky.providers.aws.ec2.user_data import beat_script, renew_host_key_script
from jupyter_sky.providers.aws.network import session
from jupyter_sky.providers.ssh.connection.connection import SSHConnection, pool
from jupyter_sky.providers.ssh.connection.errors import HostError, HostKeyError
from jupyter_sky.providers.ssh.connection.ssh_config import CONNECT_WITHIN, Login
from jupyter_sky.providers.ssh.connection.targets import parse_one

LOGIN_WITHIN = 300.0
"""Seconds for an instance to let us in, once AWS says that it runs."""

RENEWED_WITHIN = 15.0
"""Seconds for its SSH server to show a new host key."""

_PAUSE = 0.5
_ENDED_WITHIN = 5.0  # seconds
_ABORT_EVERY = 0.05  # seconds
_SESSION_PAUSE = 2.0  # a session takes a program to start, and a call to AWS
_SESSION_WITHIN = 30.0  # seconds for each step of connecting, of which the first is all that


@dataclass(frozen=True)
class LoginRoute:
    """How an instance is reached, if not at its address.

    Attributes
    ----------
    bastion
        A host of the user's to go through.
    session
        A command that starts a session of Systems Manager.
    """

    bastion: str | None = None
    session: str | None = None


def way_to(instance: str, location: str, bastion: str | None, ssm: bool) -> LoginRoute:
    """Return how an instance is reached.

    Parameters
    ----------
    location
        As in `jupyter_sky.providers.aws.clients.Clients`.
    bastion, ssm
        As in `jupyter_sky.AWS`.
    """
    if not ssm:
        return LoginRoute(bastion)
    there = clients_at(location)
    return LoginRoute(None, session.command(instance, there.region, there.profile))


def wait_for_login(
    host: str,
    keys: ClusterKeys,
    way: LoginRoute,
    report: Callable[[str], None],
    renewed: bool = False,
    count: int = 1,
) -> None:
    """Wait until an instance lets us in.

    Parameters
    ----------
    host, way
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
    connection = connection_to(host, keys, way)
    start = time.monotonic()
    while True:
        # One line for all of them, however often each is tried.
        if count > 1:
            report(f"waiting for {count} instances to {_what(way, renewed, 'their new keys')}")
        else:
            report(f"waiting for {host} to {_what(way, renewed, 'its new key')}")
        try:
            connection.connect()
            return
        except SkyError as error:
            patience = LOGIN_WITHIN
            if isinstance(error, HostKeyError):
                patience = RENEWED_WITHIN if renewed else 0.0
            if way.session and session.is_final(str(error)):
                patience = 0.0
            if time.monotonic() - start > patience:
                raise HostError(f"{host} refuses the login: {error}") from None
        time.sleep(_SESSION_PAUSE if way.session else _PAUSE)


def _what(way: LoginRoute, renewed: bool, keys: str) -> str:
    if renewed:
        return f"show {keys}"
    return "boot and to connect to Systems Manager" if way.session else "boot"


def hang_up(hosts: Sequence[str], jobs: Sequence[Future[Any]]) -> None:
    """Hang up on instances, and return when what goes on there has ended, or after some seconds."""
    until = time.monotonic() + _ENDED_WITHIN
    while not all(job.done() for job in jobs) and time.monotonic() < until:
        # Again and again: a thread may be about to connect.
        for host in hosts:
            pool.named(host).abort()
        time.sleep(_ABORT_EVERY)


def renew_host_key(host: str, keys: ClusterKeys, way: LoginRoute) -> str:
    """Give an instance a host key that no other machine has seen, and return its public half."""
    connection = connection_to(host, keys, way)
    try:
        key = connection.run(renew_host_key_script()).split()
    finally:
        connection.close()
    return " ".join(key[:2])


def send_beat(host: str, keys: ClusterKeys, way: LoginRoute) -> None:
    """Tell an instance to stay, as a node is made of it."""
    connection_to(host, keys, way).run(beat_script())


def connection_to(host: str, keys: ClusterKeys, way: LoginRoute) -> SSHConnection:
    """Return the connection to an instance, which uses the keys of its cluster from now on.

    Parameters
    ----------
    host
        ``USER@ADDRESS``.
    way
        How it is reached.
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
        jumps=(way.bastion,) if way.bastion else (),
        proxy_command=way.session,
        known_hosts=(keys.known_hosts,),
        connect_within=_SESSION_WITHIN if way.session else CONNECT_WITHIN,
        proxy_name=session.NAME,
        proxy_advice=session.ADVICE,
    )
    return pool.set_login(target, login)
