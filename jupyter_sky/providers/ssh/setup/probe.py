"""What there is on a host: one command asks for all of it."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from jupyter_sky.providers.ssh.connection.connection import HostError, Line

_SCRIPT = r"""
say() { printf '%s\t%s\n' "$1" "$2"; }
free() { df -kP "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
say system "$(uname -s)"
say machine "$(uname -m)"
say user "$(id -u)"
say home "$HOME"
say tmp "${TMPDIR:-/tmp}"
say cache "${XDG_CACHE_HOME:-$HOME/.cache}"
say cpus "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
say memory "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)"
say shared "$(free /dev/shm)"
say disk "$(free "$HOME")"
say uv "$(PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin" command -v uv)"
set -- $SSH_CONNECTION
say address "$3"
command -v nvidia-smi >/dev/null &&
    nvidia-smi --query-gpu=index,name,driver_version --format=csv,noheader 2>/dev/null |
    while read -r line; do say gpu "$line"; done
true
"""


@dataclass(frozen=True)
class Probe:
    """A host, as it was found.

    Attributes
    ----------
    system, machine
        As ``uname`` says: ``"Linux"``, ``"x86_64"``.
    home, tmp, cache
        Folders.
    cpus
        Number of processors.
    memory, shared, disk
        Bytes: of memory, and free in ``/dev/shm`` and in the home folder.
    uv
        The path of uv; empty where there is none.
    address
        Where the connection came in.
    gpus
        The name of each GPU.
    driver
        The version of NVIDIA's driver.
    """

    system: str
    machine: str
    user: int
    home: str
    tmp: str
    cache: str
    cpus: int
    memory: int
    shared: int
    disk: int
    uv: str
    address: str
    gpus: tuple[str, ...]
    driver: str | None

    @property
    def ours(self) -> str:
        """The folder of what stays from one cluster to the next."""
        return f"{self.cache}/jupyter-sky"

    @property
    def runtime(self) -> str:
        """The folder of what belongs to running clusters, on a local disk, with a short path."""
        return f"{self.tmp}/jupyter-sky-{self.user}"


def probe(line: Line) -> Probe:
    """Look at a host.

    Raises
    ------
    HostError
        When it cannot be a node.
    """
    rows = [row.split("\t", 1) for row in line.run(_SCRIPT).splitlines() if "\t" in row]
    said = {name: value for name, value in rows if name != "gpu"}
    gpus = [value.split(", ") for name, value in rows if name == "gpu"]
    if said.get("system") != "Linux":
        raise HostError(f"nodes need Linux, and it runs {said.get('system') or 'something else'}")
    return Probe(
        system=said["system"],
        machine=said["machine"],
        user=int(said["user"]),
        home=said["home"],
        tmp=said["tmp"].rstrip("/"),
        cache=said["cache"],
        cpus=int(said["cpus"] or 1),
        memory=1024 * int(said["memory"] or 0),
        shared=1024 * int(said["shared"] or 0),
        disk=1024 * int(said["disk"] or 0),
        uv=said["uv"],
        address=said["address"],
        gpus=tuple(name for _, name, _ in gpus),
        driver=gpus[0][2] if gpus else None,
    )


_PYTHON = """
import importlib.util as u, json, sys
print(json.dumps({
    "version": sys.version_info[:3],
    "missing": [name for name in sys.argv[1:] if u.find_spec(name) is None],
}))
"""


def python_command(python: str, *modules: str) -> str:
    """Return a command that says which version an interpreter has, and which modules it lacks."""
    return shlex.join([python, "-P", "-c", _PYTHON, *modules])
