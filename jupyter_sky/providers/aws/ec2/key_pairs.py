"""The SSH keys of a cluster: one that logs in, one that instances boot with, those they show."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.errors import SkyError
from jupyter_sky.paths import replace_text
from jupyter_sky.providers.aws.local_store import folder


@dataclass(frozen=True)
class ClusterKeys:
    """The folder with the keys of a cluster; only the user can read what is in it.

    Attributes
    ----------
    folder
        ``id_ed25519`` logs in, ``host_key`` is what instances show when they boot, and
        ``known_hosts`` has what each shows since. ``shown`` has the same by their ids: where an
        instance is stopped and started again, its address is another one, and its key the same.
    """

    folder: Path

    @property
    def private(self) -> Path:
        """The private key that logs in."""
        return self.folder / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The file with the host keys that instances show, by their addresses."""
        return self.folder / "known_hosts"

    @property
    def public(self) -> str:
        """The public half of the key that logs in."""
        return _read(Path(f"{self.private}.pub")).strip()

    @property
    def host_key(self) -> tuple[str, str]:
        """The host key that instances boot with: its private and its public half."""
        path = self.folder / "host_key"
        return _read(path), _read(Path(f"{path}.pub")).strip()

    def expect(self, addresses: dict[str, str]) -> None:
        """Expect these public keys of instances, by address, from now on."""
        known = self.known_hosts.read_text().splitlines() if self.known_hosts.exists() else []
        kept = [line for line in known if line.partition(" ")[0] not in addresses]
        new = [f"{address} {key}" for address, key in addresses.items()]
        replace_text(self.known_hosts, "\n".join([*kept, *new, ""]))

    def remember(self, instances: dict[str, str]) -> None:
        """Remember these public keys of instances, by their ids."""
        kept = {**self.of_instances(), **instances}
        replace_text(
            self.folder / "shown", "".join(f"{name} {key}\n" for name, key in kept.items())
        )

    def of_instances(self) -> dict[str, str]:
        """Return the public keys that instances show, by their ids."""
        path = self.folder / "shown"
        lines = path.read_text().splitlines() if path.exists() else []
        return {name: key for name, _, key in (line.partition(" ") for line in lines)}

    def remove(self) -> None:
        """Delete the keys."""
        shutil.rmtree(self.folder, ignore_errors=True)


def keys_of(identity: str) -> ClusterKeys:
    """Return the keys of a cluster, whether they are there or not."""
    return ClusterKeys(folder() / "keys" / identity)


def make_keys(identity: str) -> ClusterKeys:
    """Make the keys of a new cluster."""
    keys = keys_of(identity)
    keys.folder.mkdir(mode=0o700, parents=True)
    for path in (keys.private, keys.folder / "host_key"):
        private, public = _pair()
        replace_text(path, private)
        replace_text(Path(f"{path}.pub"), f"{public}\n")
    return keys


def _pair() -> tuple[str, str]:
    from cryptography.hazmat.primitives import serialization as form
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(form.Encoding.PEM, form.PrivateFormat.OpenSSH, form.NoEncryption())
    public = key.public_key().public_bytes(form.Encoding.OpenSSH, form.PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except FileNotFoundError:
        raise SkyError("the keys of the cluster are gone: it was ended from elsewhere.") from None
