"""What notebook, ranks and Dask's processes tell each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from jupyter_sky.providers.mtls import Credentials

Role = Literal["client", "scheduler", "worker"]


@dataclass(frozen=True)
class WorkerOptions:
    """What a worker may use.

    Attributes
    ----------
    concurrency
        Tasks at once.
    memory
        Bytes; ``None`` for its share of the machine.
    """

    concurrency: int = 1
    memory: int | None = None


@dataclass(frozen=True, repr=False)
class Place:
    """Where a scheduler is, and what those who belong to it show each other.

    Attributes
    ----------
    host, port
        Where it listens; port 0 before it was started.
    pages
        The port of its pages, at the same address; 0 as well.
    credentials
        For each role.
    """

    credentials: Mapping[Role, Credentials]
    host: str = ""
    port: int = 0
    pages: int = 0

    @property
    def address(self) -> str:
        """The address as Dask writes it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"tls://{host}:{self.port}"


class ProcessSettings(TypedDict):
    """What a process of Dask's is told on its standard input, as one line of JSON.

    Attributes
    ----------
    role
        Whether it is the scheduler or a worker.
    host, port
        Where the scheduler listens; or the address on which a worker does, at a free port.
    pages
        The port of the scheduler's pages.
    scheduler
        The address of the scheduler; empty for itself.
    authority, certificate, key
        As `jupyter_sky.providers.mtls.Credentials` has them.
    name
        The name of a worker.
    concurrency, memory
        As `WorkerOptions` has them.
    sys_path, python_path
        What it imports from, and its ``PYTHONPATH``.
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
    sys_path: list[str]
    python_path: str | None


class ProcessStarted(TypedDict):
    """What it answers: the ports at which it listens, and at which its pages are; 0 for none."""

    port: int
    pages: int


def security(credentials: Credentials, *roles: Role) -> dict[str, object]:
    """Return the arguments of `distributed.security.Security`: both sides show a certificate."""
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
