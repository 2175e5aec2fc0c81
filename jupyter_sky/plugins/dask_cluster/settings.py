"""Data exchanged between the notebook, ranks and Dask's processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from jupyter_sky.providers.mtls import Credentials

Role = Literal["client", "scheduler", "worker"]

PAGE = "dask"
"""The name of the scheduler's pages among those of a cluster."""


@dataclass(frozen=True)
class WorkerOptions:
    """The resources of a worker.

    Attributes
    ----------
    concurrency
        Number of tasks at once.
    memory
        Bytes; ``None`` for its share of the machine.
    """

    concurrency: int = 1
    memory: int | None = None


@dataclass(frozen=True, repr=False)
class SchedulerPlace:
    """The addresses of a scheduler, and the credentials of everybody who connects to it.

    Attributes
    ----------
    host, port
        Where it listens; port 0 before it was started.
    pages
        The port of its pages, at the same address; also 0 before.
    credentials
        The credentials for each role.
    """

    credentials: Mapping[Role, Credentials]
    host: str = ""
    port: int = 0
    pages: int = 0

    @property
    def address(self) -> str:
        """The address in Dask's syntax."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"


class ProcessSettings(TypedDict):
    """The settings of a Dask process, sent to its standard input as one line of JSON.

    Attributes
    ----------
    role
        Whether it is the scheduler or a worker.
    host, port
        Where the scheduler listens, or the address on which a worker listens, on a free port.
    pages
        The port of the scheduler's pages.
    scheduler
        The address of the scheduler; empty for itself.
    authority, certificate, key
        As in `jupyter_sky.providers.mtls.Credentials`.
    name
        The name of a worker.
    concurrency
        As in `WorkerOptions`.
    memory
        Bytes; 0 for its share of what the machine, or the container, has.
    beside
        Among how many workers that is divided.
    folder
        The folder of the node, which is private and removed with it: what Dask writes goes there.
    sys_path, python_path
        Its import paths, and its ``PYTHONPATH``.
    """

    role: Role
    host: str
    port: int
    pages: int
    scheduler: str
    authority: str
    certificate: str
    key: str
    name: str
    concurrency: int
    memory: int
    beside: int
    folder: str
    sys_path: list[str]
    python_path: str | None


class ProcessStarted(TypedDict):
    """Its answer: the ports on which it listens and serves pages; 0 for none."""

    port: int
    pages: int


def security(credentials: Credentials, *roles: Role) -> dict[str, object]:
    """Return the arguments of `distributed.security.Security` for mutual TLS."""
    import ssl

    shown = {f"tls_{role}_cert": credentials.certificate for role in roles}
    keys = {f"tls_{role}_key": credentials.key for role in roles}
    return {
        "require_encryption": True,
        "tls_ca_file": credentials.authority,
        "tls_min_version": ssl.TLSVersion.TLSv1_3,
        **shown,
        **keys,
    }
