"""A host of the lab: what it is made of, and what can happen to it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

BOOT = Path(__file__).with_name("boot.sh")
WITHIN = 120.0
"""Seconds for a host to come up; they take a tenth of one where nothing else runs."""

HAS_IPV6 = Path("/proc/net/if_inet6").exists()

USERS = {"root": 0, "ada": 6001, "bob": 6002}

_SSHD = """\
{listen}
HostKey {folder}/etc/host_key
HostCertificate {folder}/etc/host_key-cert.pub
PidFile {folder}/sshd.pid
AuthorizedKeysFile {authorized}
TrustedUserCAKeys {authority}
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 200
MaxSessions 50
UseDNS no
PrintMotd no
SetEnv TMPDIR={folder}/tmp PATH={folder}/bin:/usr/local/bin:/usr/bin:/bin
"""


@dataclass(frozen=True)
class Host:
    """A host of a lab.

    Attributes
    ----------
    name, address
        What it is called, and where it is reached, by all hosts and by this machine.
    folder
        What is its own: homes, temporary files, the keys and the log of its SSH server.
    wire
        The name of the network interface at this end of its cable.
    address6
        Its address of IPv6, if it has one.
    """

    name: str
    address: str
    folder: Path
    wire: str
    gateway: str
    bridge: str
    address6: str = ""

    @property
    def home(self) -> Path:
        """The home of root."""
        return self.folder / "home" / "root"

    @property
    def pid(self) -> int:
        """The first process of the host, as this machine counts."""
        return int((self.folder / "pid").read_text())

    # Its life

    def make(self, keys: Path, names: str) -> None:
        """Write the files that it boots from.

        Parameters
        ----------
        keys
            Folder with ``authorized_keys``, and ``ca.pub`` whose certificates are trusted.
        names
            The content of ``/etc/hosts``.
        """
        # In memory: what a test installs on a host is thousands of files.
        self.folder.mkdir(parents=True, exist_ok=True)
        command(["mount", "-t", "tmpfs", "-o", "mode=755,size=32g", "sky-lab", str(self.folder)])
        etc = self.folder / "etc"
        etc.mkdir(parents=True)
        tmp = self.folder / "tmp"
        tmp.mkdir()
        tmp.chmod(0o1777)
        # The Python of the tests, as a machine has it whose Python is as new as the notebook's.
        (self.folder / "bin").mkdir()
        version = ".".join(map(str, sys.version_info[:2]))
        interpreter = Path(sys.executable).resolve()
        (self.folder / "bin" / f"python{version}").symlink_to(interpreter)
        lines = []
        for user, number in USERS.items():
            place = self.folder / "home" / user
            place.mkdir(parents=True)
            os.chown(place, number, number)
            lines.append(f"{user}:*:{number}:{number}::{place}:/bin/sh\n")
        lines.append("sshd:x:999:65534::/run/sshd:/usr/sbin/nologin\n")
        lines.append("nobody:*:65534:65534::/nonexistent:/usr/sbin/nologin\n")
        (etc / "passwd").write_text("".join(lines))
        (etc / "hosts").write_text(names)
        # No name server is in reach: one that does not answer would cost seconds for each name.
        (etc / "resolv.conf").write_text("")
        (etc / "sshd_config").write_text(
            _SSHD.format(
                listen="\n".join(f"ListenAddress {each}" for each in self.addresses),
                folder=self.folder,
                authorized=keys / "authorized_keys",
                authority=keys / "ca.pub",
            )
        )
        make_key(etc / "host_key")
        if (keys / "ca").exists():
            self.certify(keys / "ca", *self.addresses)

    def certify(self, authority: Path, *names: str, valid: str = "-1d:+1d") -> None:
        """Have its key certified for these names; its SSH server shows that when it starts next."""
        signed = ["-s", str(authority), "-I", self.name, "-h", "-n", ",".join(names), "-V", valid]
        command(["ssh-keygen", "-q", *signed, str(self.folder / "etc" / "host_key.pub")])

    @property
    def addresses(self) -> list[str]:
        """Its addresses; that of IPv6 only if this machine knows such."""
        return [self.address, *[self.address6] * (HAS_IPV6 and bool(self.address6))]

    def start(self) -> None:
        """Switch it on and wait until its SSH server listens."""
        up = self.folder / "up"
        up.unlink(missing_ok=True)
        unshare = ["unshare", "--net", "--mount", "--uts", "--ipc", "--pid", "--fork"]
        first, *others = self.addresses
        boot = ["sh", str(BOOT), str(self.folder), first, self.gateway, *others]
        with (self.folder / "boot.log").open("ab") as log:
            started = subprocess.Popen(
                [*unshare, "--kill-child", *boot],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + WITHIN
        children = Path(f"/proc/{started.pid}/task/{started.pid}/children")
        while not (first := children.read_text().split()):
            self._patience(deadline, started)
        (self.folder / "pid").write_text(first[0])
        # A machine that comes back has the address that others remember.
        numbers = [int(number) for number in self.address.split(".")]
        mac = "02:00:" + ":".join(f"{number:02x}" for number in numbers)
        peer = ["peer", "name", "eth0", "address", mac, "netns", first[0]]
        command(["ip", "link", "add", self.wire, "type", "veth", *peer])
        command(["ip", "link", "set", self.wire, "master", self.bridge, "up"])
        while not up.exists() or not self._listens():
            self._patience(deadline, started)

    def _listens(self) -> bool:
        # sshd goes into the background first, and listens then.
        try:
            socket.create_connection((self.address, 22), 1).close()
        except OSError:
            return False
        return True

    def _patience(self, deadline: float, started: subprocess.Popen[bytes]) -> None:
        if started.poll() is not None or time.monotonic() > deadline:
            said = (self.folder / "boot.log").read_text()
            raise RuntimeError(f"{self.name} did not come up: {said}")
        time.sleep(0.005)

    @property
    def is_up(self) -> bool:
        """Whether it runs: another process could have its id by now."""
        try:
            words = Path(f"/proc/{self.pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False
        return str(self.folder).encode() in words

    def power_off(self) -> None:
        """Cut the power: every process of the host is gone, and nobody was told."""
        if self.is_up:
            # The cable first: the end of a process would still send its last words.
            subprocess.run(["ip", "link", "set", self.wire, "down"], capture_output=True)
            with contextlib.suppress(ProcessLookupError):  # it has just powered off by itself
                os.kill(self.pid, signal.SIGKILL)
            while self.is_up:
                time.sleep(0.005)
        subprocess.run(["ip", "link", "delete", self.wire], capture_output=True)

    def remove(self) -> None:
        """Cut the power and remove the host's files."""
        with contextlib.suppress(FileNotFoundError):
            self.power_off()
        subprocess.run(["umount", "--lazy", str(self.folder)], capture_output=True)
        shutil.rmtree(self.folder, ignore_errors=True)

    # What can happen to it

    def run(self, *words: str, check: bool = True) -> str:
        """Run a command on the host as root, not over SSH, and return what it prints."""
        enter = ["nsenter", "--target", str(self.pid), "--all", "--"]
        return command([*enter, *words], check)

    def cut(self) -> None:
        """Pull the cable."""
        command(["ip", "link", "set", self.wire, "down"])

    def mend(self) -> None:
        """Plug the cable in again."""
        command(["ip", "link", "set", self.wire, "up"])

    def slow_down(self, megabits: float, loss: float = 0.0) -> None:
        """Make the cable slow both ways, and lose a share of what the host is sent."""
        rate = ["root", "tbf", "rate", f"{megabits}mbit", "burst", "64kb", "latency", "200ms"]
        command(["tc", "qdisc", "replace", "dev", self.wire, *rate])
        self.run("tc", "qdisc", "replace", "dev", "eth0", *rate)
        if loss:
            lose = ["-m", "statistic", "--mode", "random", "--probability", f"{loss}"]
            self.run("iptables", "-A", "INPUT", "-i", "eth0", *lose, "-j", "DROP")

    def speed_up(self) -> None:
        """Undo `slow_down` and `block`."""
        command(["tc", "qdisc", "delete", "dev", self.wire, "root"], check=False)
        self.run("tc", "qdisc", "delete", "dev", "eth0", "root", check=False)
        self.run("iptables", "-F")

    def block(self, other: Host) -> None:
        """Have its firewall drop everything that comes from another host."""
        self.run("iptables", "-A", "INPUT", "-s", other.address, "-j", "DROP")

    def restart_sshd(self) -> None:
        """Restart the SSH server; its connections end, what they started may go on."""
        servers = self.processes("sshd")
        for server in servers:
            with contextlib.suppress(psutil.NoSuchProcess):
                server.kill()
        psutil.wait_procs(servers, WITHIN)  # the port is theirs until then
        config = str(self.folder / "etc" / "sshd_config")
        self.run("/usr/sbin/sshd", "-f", config, "-E", str(self.folder / "sshd.log"))
        deadline = time.monotonic() + WITHIN
        while not any(port == 22 for _, port in self.listening()) and time.monotonic() < deadline:
            time.sleep(0.005)

    def processes(self, pattern: str = "") -> list[psutil.Process]:
        """Return the processes of the host whose command line has ``pattern``."""
        found = []
        for process in psutil.Process(self.pid).children(recursive=True):
            with contextlib.suppress(psutil.Error):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and re.search(pattern, " ".join(process.cmdline())):
                    found.append(process)
        return found

    def agent_folders(self) -> list[Path]:
        """Return the folders of agents; a template of fork servers may lie beside them."""
        runtime = self.folder / "tmp" / f"jupyter-sky-{os.getuid()}"
        return [path for path in runtime.glob("*") if path.suffix != ".template"]

    def carried(self) -> tuple[int, int]:
        """Return how many bytes have come over its cable, and how many it has sent."""
        [line] = [
            line
            for line in self.run("cat", "/proc/net/dev").splitlines()
            if line.strip().startswith("eth0:")
        ]
        return int(line.split()[1]), int(line.split()[9])

    def clients(self) -> int:
        """Return how many connections there are to the sockets of agents."""
        lines = self.run("ss", "-Hx", "state", "connected").splitlines()
        return sum("/agent.sock" in line for line in lines)

    @contextlib.contextmanager
    def configured(self, line: str) -> Iterator[None]:
        """Have a line more in the configuration of its SSH server for a while."""
        config = self.folder / "etc" / "sshd_config"
        usual = config.read_text()
        config.write_text(f"{line}\n{usual}")
        self.restart_sshd()
        try:
            yield
        finally:
            config.write_text(usual)
            self.restart_sshd()

    def listening(self) -> set[tuple[str, int]]:
        """Return address and port of every TCP socket that listens on the host."""
        found = set()
        for line in self.run("ss", "-Hltn").splitlines():
            address, _, port = line.split()[3].rpartition(":")
            found.add((address, int(port)))
        return found


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Make a key pair with OpenSSH's own tool and return the private key's path."""
    words = ["-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)]
    command(["ssh-keygen", *words])
    return path


def command(words: list[str], check: bool = True) -> str:
    """Run a command and return what it prints; what it says of a failure is in the error."""
    done = subprocess.run(words, capture_output=True, text=True)
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
