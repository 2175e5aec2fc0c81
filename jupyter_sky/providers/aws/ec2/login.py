"""Logging in to instances, with the keys of their cluster."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from jupyter_sky.errors import SkyError
from jupyter_sky.providers.aws.clients import clients_at
from jupyter_sky.providers.aws.ec2.key_pairs import ClusterKeys, keys_of
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
_SESSION_PAUSE = 2.0  # a session takes a program to start, and a call to AWS
_SESSION_WITHIN = 30.0  # seconds for each step of connecting, of which the first is all that


@dataclass(frozen=True)
class InstanceLogin:
    """The login to an instance, with the keys of its cluster.

    Attributes
    ----------
    host
        ``USER@ADDRESS``.
    keys
        The keys.
    bastion
        A host of the user's to go through.
    session
        A command that starts a session of Systems Manager, in place of going to its address.
    """

    host: str
    keys: ClusterKeys
    bastion: str | None = None
    session: str | None = None

    @classmethod
    def to(
        cls, host: str, cluster: str, instance: str, location: str, bastion: str | None, ssm: bool
    ) -> InstanceLogin:
        """Return the login to an instance of a cluster.

        Parameters
        ----------
        location
            As in `jupyter_sky.providers.aws.clients.Clients`.
        bastion, ssm
            As in `jupyter_sky.AWS`.
        """
        keys = keys_of(cluster)
        if not ssm:
            return cls(host, keys, bastion)
        there = clients_at(location)
        return cls(host, keys, None, session.command(instance, there.region, there.profile))

    def connection(self) -> SSHConnection:
        """Return the connection, which uses the keys of the cluster from now on."""
        target = parse_one(self.host)
        login = Login(
            address=target.name,
            port=22,
            user=target.user or "root",
            key_name=target.name,
            identity_files=(self.keys.private,),
            certificates=(),
            only_these=True,
            use_agent=False,
            jumps=(self.bastion,) if self.bastion else (),
            proxy_command=self.session,
            known_hosts=(self.keys.known_hosts,),
            connect_within=_SESSION_WITHIN if self.session else CONNECT_WITHIN,
            proxy_name=session.NAME,
            proxy_advice=session.ADVICE,
        )
        return pool.set_login(target, login)

    def wait(self, report: Callable[[str], None], count: int, renewed: bool = False) -> None:
        """Wait until the instance lets us in.

        Parameters
        ----------
        report
            Called with what goes on; raising from it ends the wait.
        count
            Number of instances that are waited for at the same time.
        renewed
            Whether its host key was renewed a moment ago, so that it may still show the old one.

        Raises
        ------
        HostError
            When it does not let us in, or another machine answers in its place.
        """
        connection = self.connection()
        start = time.monotonic()
        while True:
            # One line for all of them, however often each is tried.
            if count > 1:
                report(f"waiting for {count} instances to {self._what(renewed, 'their new keys')}")
            else:
                report(f"waiting for {self.host} to {self._what(renewed, 'its new key')}")
            try:
                connection.connect()
                return
            except SkyError as error:
                patience = LOGIN_WITHIN
                if isinstance(error, HostKeyError):
                    patience = RENEWED_WITHIN if renewed else 0.0
                if self.session and session.is_final(str(error)):
                    patience = 0.0
                if time.monotonic() - start > patience:
                    raise HostError(f"{self.host} refuses the login: {error}") from None
            time.sleep(_SESSION_PAUSE if self.session else _PAUSE)

    def _what(self, renewed: bool, keys: str) -> str:
        if renewed:
            return f"show {keys}"
        return "boot and to connect to Systems Manager" if self.session else "boot"

    def renew_host_key(self) -> str:
        """Give the instance a host key that no other machine has seen; return its public half."""
        connection = self.connection()
        try:
            key = connection.run(renew_host_key_script()).split()
        finally:
            connection.close()
        return " ".join(key[:2])

    def send_beat(self) -> None:
        """Tell the instance to stay, as a node is made of it."""
        self.connection().run(beat_script())
