"""A lab: hosts on a bridge, and this machine at the bridge's own address."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from jupyter_sky.cluster.inventory.storage import processes
from tests.lab.host import HAS_IPV6, Host, command, make_key

_PLACE = Path("/var/lib/sky-lab")
_MOST = 64
_FORWARDING = Path("/proc/sys/net/ipv4/ip_forward")
_TOOLS = {
    "/usr/sbin/sshd": "openssh-server",
    "ssh-keygen": "openssh-client",
    "ip": "iproute2",
    "iptables": "iptables",
    "tcpdump": "tcpdump",
    "unshare": "util-linux",
}


def missing() -> str | None:
    """Return why there can be no lab here, and what to do about it; ``None`` if there can."""
    packages = sorted({name for tool, name in _TOOLS.items() if not shutil.which(tool)})
    if packages:
        return f"the lab needs `apt-get install {' '.join(packages)}`"
    if os.geteuid():
        return "the lab needs root, for namespaces and network interfaces"
    probe = ["unshare", "--net", "--mount", "--pid", "--fork", "true"]
    if subprocess.run(probe, capture_output=True).returncode:
        return "the lab needs namespaces, which this container does not allow: run it privileged"
    return None


class Lab:
    """Hosts, and a home with keys that they let in.

    Attributes
    ----------
    hosts
        Its hosts.
    address
        Where hosts reach this machine.
    home
        A home folder for clients on this machine: ``.ssh`` has a key, the hosts' names and keys.
    """

    def __init__(self, index: int) -> None:
        self.index = index
        self.folder = _PLACE / str(index)
        self.bridge = f"skylab{index}"
        self.address = f"10.213.{index}.1"
        self.home = self.folder / "home"
        self.hosts: list[Host] = []

    @classmethod
    def start(cls, count: int, keep: bool = False) -> Lab:
        """Start a lab.

        Parameters
        ----------
        count
            Number of hosts.
        keep
            Whether it stays when this process ends. If not, the next lab removes it.
        """
        _PLACE.mkdir(parents=True, exist_ok=True)
        with _locked():
            for lab in labs():
                if lab.is_left_over:
                    lab._remove()
            lab = _first_free()
            lab._own(keep)
        try:
            lab._make(count)
        except BaseException:
            lab.stop()
            raise
        return lab

    def _own(self, keep: bool) -> None:
        # A process that reads the folder finds it with its owner in it, or does not find it.
        new = self.folder.with_name(f"new-{self.index}")
        shutil.rmtree(new, ignore_errors=True)
        new.mkdir()
        (new / "owner").write_text(json.dumps(None if keep else processes.describe()))
        new.rename(self.folder)

    def _make(self, count: int) -> None:
        command(["ip", "address", "add", f"{self.address}/24", "dev", self.bridge])
        if HAS_IPV6:
            address = f"fd00:214:{self.index + 1}::1/64"
            command(["ip", "address", "add", address, "dev", self.bridge, "nodad"])
        command(["ip", "link", "set", self.bridge, "up"])
        self.hosts = [self._host(number) for number in range(1, count + 1)]
        self._make_keys()
        names = "".join(f"{host.address} {host.name}\n" for host in self.hosts)
        with ThreadPoolExecutor(count) as threads:
            keys = self.folder / "keys"
            list(
                threads.map(
                    lambda host: host.make(keys, f"127.0.0.1 localhost\n{names}"), self.hosts
                )
            )
            list(threads.map(lambda host: host.start(), self.hosts))
        self._make_home()

    def _host(self, number: int) -> Host:
        return Host(
            name=f"lab{number}",
            address=f"10.213.{self.index}.{10 + number}",
            address6=f"fd00:214:{self.index + 1}::{10 + number}",
            folder=self.folder / f"lab{number}",
            wire=f"sky{self.index}h{number}",
            gateway=self.address,
            bridge=self.bridge,
        )

    def _make_keys(self) -> None:
        keys = self.folder / "keys"
        keys.mkdir()
        make_key(keys / "ca")
        key = make_key(keys / "id_ed25519")
        shutil.copy(f"{key}.pub", keys / "authorized_keys")

    def authorize(self, key: Path) -> None:
        """Let in who has this private key."""
        with (self.folder / "keys" / "authorized_keys").open("a") as file:
            file.write(Path(f"{key}.pub").read_text())

    def certify(self, key: Path, principal: str = "root") -> None:
        """Write a certificate for this private key, which all hosts trust, beside it."""
        authority = str(self.folder / "keys" / "ca")
        command(["ssh-keygen", "-q", "-s", authority, "-I", "lab", "-n", principal, f"{key}.pub"])

    def _make_home(self) -> None:
        ssh = self.home / ".ssh"
        ssh.mkdir(parents=True, mode=0o700)
        for name in ("id_ed25519", "id_ed25519.pub"):
            shutil.copy(self.folder / "keys" / name, ssh / name)
        config = "".join(f"Host {host.name}\n  HostName {host.address}\n" for host in self.hosts)
        (ssh / "config").write_text(f"{config}Host *\n  User root\n")
        known = "".join(f"{','.join(host.addresses)} {_public_key(host)}\n" for host in self.hosts)
        (ssh / "known_hosts").write_text(known)

    def add_network(self) -> dict[str, str]:
        """Connect all hosts by a second network; return the address of each on its ``eth1``."""
        bridge = f"{self.bridge}b"
        command(["ip", "link", "add", bridge, "type", "bridge"])
        command(["ip", "link", "set", bridge, "up"])
        found = {}
        for host in self.hosts:
            wire, pid = f"{host.wire}b", str(host.pid)
            peer = ["peer", "name", "eth1", "netns", pid]
            command(["ip", "link", "add", wire, "type", "veth", *peer])
            command(["ip", "link", "set", wire, "master", bridge, "up"])
            found[host.name] = host.address.replace("10.213.", "10.214.", 1)
            host.run("ip", "address", "add", f"{found[host.name]}/24", "dev", "eth1")
            host.run("ip", "link", "set", "eth1", "up")
        return found

    def remove_network(self) -> None:
        """Undo `add_network`."""
        for host in self.hosts:
            subprocess.run(["ip", "link", "delete", f"{host.wire}b"], capture_output=True)
        subprocess.run(["ip", "link", "delete", f"{self.bridge}b"], capture_output=True)

    def open_gate(self) -> None:
        """Have this machine pass on what hosts send to elsewhere, as if it came from itself."""
        with _locked():
            # The first that opens knows how it was before, and the last that closes restores it.
            others = [lab.folder / "forwarded" for lab in labs() if lab.index != self.index]
            before = next((each for each in others if each.exists()), _FORWARDING).read_text()
            (self.folder / "forwarded").write_text(before)
            _FORWARDING.write_text("1")
        for words in self._gate:
            command(["iptables", "--wait", *words])
        names = Path("/etc/resolv.conf").read_text()
        for host in self.hosts:
            (host.folder / "etc" / "resolv.conf").write_text(names)

    def close_gate(self) -> None:
        """Undo `open_gate`."""
        with _locked():
            self._close_gate()

    def _close_gate(self) -> None:
        before = self.folder / "forwarded"
        if not before.exists():
            return
        for words in self._gate:
            undone = ["-D" if word == "-I" else word for word in words]
            subprocess.run(["iptables", "--wait", *undone], capture_output=True)
        text = before.read_text()
        before.unlink()
        if not any((lab.folder / "forwarded").exists() for lab in labs()):
            _FORWARDING.write_text(text)
        for host in self.hosts:
            # The files of a host are in memory: they are gone if this machine was switched off.
            with contextlib.suppress(FileNotFoundError):
                (host.folder / "etc" / "resolv.conf").write_text("")

    @property
    def _gate(self) -> list[list[str]]:
        """The rules of the firewall that let hosts out."""
        network = f"10.213.{self.index}.0/24"
        hidden = ["-s", network, "!", "-d", "10.213.0.0/16", "-j", "MASQUERADE"]
        return [
            ["-t", "nat", "-I", "POSTROUTING", *hidden],
            ["-I", "FORWARD", "-s", network, "-j", "ACCEPT"],
            ["-I", "FORWARD", "-d", network, "-j", "ACCEPT"],
        ]

    def unplug(self) -> None:
        """Pull this machine's own cable: hosts still reach each other."""
        for host in self.hosts:
            host.run("iptables", "-A", "INPUT", "-s", self.address, "-j", "DROP")
            host.run("iptables", "-A", "OUTPUT", "-d", self.address, "-j", "DROP")

    def plug_in(self) -> None:
        """Plug it in again."""
        for host in self.hosts:
            host.run("iptables", "-F")

    @property
    def is_left_over(self) -> bool:
        """Whether nobody will ever stop it: who started it is gone."""
        with contextlib.suppress(OSError, ValueError):
            started = json.loads((self.folder / "owner").read_text())
            return started is not None and not processes.is_there(started, since=time.time())
        return self.folder.exists()

    @property
    def is_kept(self) -> bool:
        """Whether it was started to stay."""
        with contextlib.suppress(OSError):
            return (self.folder / "owner").read_text() == "null"
        return False

    def stop(self) -> None:
        """End every process of every host and remove what there was of the lab."""
        with _locked():
            self._remove()

    def _remove(self) -> None:
        self._close_gate()
        for folder in self.folder.glob("lab*"):
            self._host(int(folder.name.removeprefix("lab"))).remove()
        self.remove_network()
        subprocess.run(["ip", "link", "delete", self.bridge], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    def find(self) -> Lab:
        """Return the lab with the hosts that were started by another process."""
        numbers = sorted(int(path.name[3:]) for path in self.folder.glob("lab*"))
        self.hosts = [self._host(number) for number in numbers]
        return self


def labs() -> Iterator[Lab]:
    """Find the labs of this machine, also those of other processes."""
    for folder in sorted(_PLACE.glob("[0-9]*")):
        yield Lab(int(folder.name)).find()


@contextlib.contextmanager
def _locked() -> Iterator[None]:
    """Let one process at a time take a number or give one back.

    Another one could take a lab that is half removed for one that is left over, and remove the
    bridge of the lab that has its number next.
    """
    with (_PLACE / "lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _first_free() -> Lab:
    """Take a number for a lab: only one process can make the bridge of that name."""
    for index in range(_MOST):
        lab = Lab(index)
        words = ["ip", "link", "add", lab.bridge, "type", "bridge"]
        if not lab.folder.exists() and not subprocess.run(words, capture_output=True).returncode:
            return lab
    raise RuntimeError(f"there are {_MOST} labs already: `python -m tests.lab down` ends them")


def _public_key(host: Host) -> str:
    return " ".join((host.folder / "etc" / "host_key.pub").read_text().split()[:2])
