"""The facts of a host: its system, folders, processors, memory, GPUs. One command asks for all."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from jupyter_sky.formatting import plain
from jupyter_sky.providers.ssh.connection.errors import HostError, runs_nothing
from jupyter_sky.providers.ssh.connection.host_shell import HostShell

RUNTIME = r"""
# Another user may have made a folder of our name first: then it is the first of ours that has one
# like it, or a new one.
tmp="${TMPDIR%/}"
# As Python does, pass over one that cannot be used; sockets are in it, whose paths must be short.
case "$tmp" in /*) [ -d "$tmp" ] && [ -w "$tmp" ] && [ "${#tmp}" -le 50 ] ;; *) false ;; esac ||
    tmp=/tmp
runtime="$tmp/jupyter-sky-$(id -u)"
is_ours() { [ -d "$1" ] && [ ! -L "$1" ] && [ -O "$1" ]; }
if { [ -e "$runtime" ] || [ -L "$runtime" ]; } && ! is_ours "$runtime"; then
    for other in "$runtime".*; do is_ours "$other" && break; done
    is_ours "$other" || other=$(mktemp -d "$runtime.XXXXXX")
    runtime=$other
fi
"""
"""Sets ``$runtime``, the folder of running agents."""

_SCRIPT = r"""
say() { printf '%s\t%s\n' "$1" "$2"; }
free() { df -kP "$1" 2>/dev/null | awk 'NR == 2 { print $4 }'; }
say system "$(uname -s)"
say machine "$(uname -m)"
say user "$(id -u)"
say umask "$(umask)"
say home "$HOME"
"""
_SCRIPT += RUNTIME
_SCRIPT += r"""
say runtime "$runtime"
case "$XDG_CACHE_HOME" in /*) cache="${XDG_CACHE_HOME%/}" ;; *) cache="$HOME/.cache" ;; esac
say cache "$cache"
say cpus "$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)"
say memory "$(awk '/^MemTotal/ { print $2 }' /proc/meminfo)"
# In some containers, nobody can write there, although there is room.
say shared "$([ -w /dev/shm ] && free /dev/shm)"
nearest() { place="$1"; until [ -d "${place:-/}" ]; do place="${place%/*}"; done; }
refused=
for wanted in "$runtime" "$HOME/jupyter-sky" "$cache/jupyter-sky"; do
    nearest "$wanted"
    [ -w "${place:-/}" ] || refused="${refused:-$wanted}"
done
say refused "$refused"
say disk "$(free "${place:-/}")"
# What is in our part of the cache is run, and the cache may be a folder of all users. Where they
# can write, our part is made at once, so that nobody makes it first.
ours="$cache/jupyter-sky"
is_for_all() { [ -n "$(find -H "${1:-/}" -maxdepth 0 -perm -002)" ]; }
# Both the folder, and a link in its place.
is_mine() { [ -O "$1" ] && [ -n "$(find "$1" -maxdepth 0 -user "$(id -u)")" ]; }
nearest "$ours"
is_for_all "$place" && ( umask 077; mkdir -p "$ours" 2>/dev/null )
loose=
if [ ! -e "$cache" ]; then
    :
elif [ -e "$ours" ] && { ! is_mine "$ours" || is_for_all "$ours"; }; then
    loose="$ours"
elif is_for_all "$cache" && [ ! -k "$cache" ]; then
    loose="$cache"
elif ! is_mine "$cache" && [ -z "$(find -H "$cache" -maxdepth 0 -user 0)" ]; then
    loose="$cache"
fi
# A home is the user's.
case "$XDG_CACHE_HOME" in /*) ;; *) loose= ;; esac
say loose "$loose"
# The modification time says when it was last used, for `prune`.
[ -z "$code" ] || { touch -c "$ours/code/$code"; [ -d "$ours/code/$code" ] && say code yes; }
say uv "$(PATH="$PATH:$HOME/.local/bin:$HOME/.cargo/bin" command -v uv)"
set -- $SSH_CONNECTION
say address "$3"
# It waits for ever for a GPU that hangs.
limited() {
    timeout -k 1 "$within" "$@"
    [ $? != 124 ] || echo "nothing for $within s"
}
command -v timeout >/dev/null || limited() { "$@"; }
# Machine images may have it for machines with and without GPUs.
vendors=$(cat /sys/bus/pci/devices/*/vendor 2>/dev/null)
case "$vendors" in *0x10de*) ;; ?*) say bare yes ;; esac
command -v nvidia-smi >/dev/null &&
    limited nvidia-smi --query-gpu=index,name,driver_version,memory.used \
        --format=csv,noheader,nounits 2>&1 | while read -r line; do say gpu "$line"; done
# Ranks of a cluster that is idle may not have touched their GPUs yet.
cat "$runtime"/*/spec.json 2>/dev/null | grep -o '"CUDA_VISIBLE_DEVICES": *"[0-9]*"' |
    while read -r line; do say taken "$(echo "$line" | tr -dc 0-9)"; done
true
"""

NVIDIA_WITHIN = 40
"""Seconds in which nvidia-smi has to answer; it takes many where the driver is loaded for it."""

_GPU = re.compile(r"\d+, (.+), ([^,]+), ([^,]+)")
_LITTLE = 1024  # megabytes of a GPU that its driver and a display may take


@dataclass(frozen=True)
class HostFacts:
    """The facts of a host.

    Attributes
    ----------
    system, machine
        As in ``uname``: ``"Linux"``, ``"x86_64"``.
    umask
        The umask of the user's programs.
    home, cache
        Folders.
    refused
        The first folder of ours that cannot be written to; empty if all can.
    loose
        The folder of the cache that other users can change; empty if they cannot.
    has_code
        Whether the cache has the code that was asked for.
    runtime_folder
        The folder of running agents, on a local disk, with a short path.
    cpus
        Number of processors.
    memory, shared, disk
        Bytes: of memory, and free for us in ``/dev/shm`` and where ``cache`` is.
    uv
        The path of uv; empty if there is none.
    address
        The host's address of the connection.
    gpus
        The name of each GPU.
    driver
        The version of NVIDIA's driver.
    gpus_in_use
        The numbers of the GPUs that others use, or clusters of this user.
    gpu_trouble
        What ``nvidia-smi`` says where it shows no GPU, although there may be one; else empty.
    """

    system: str
    machine: str
    user: int
    umask: int
    home: str
    runtime_folder: str
    cache: str
    refused: str
    loose: str
    cpus: int
    memory: int
    shared: int
    disk: int
    uv: str
    address: str
    gpus: tuple[str, ...]
    driver: str | None
    gpus_in_use: frozenset[int] = frozenset()
    gpu_trouble: str = ""
    has_code: bool = False

    @property
    def cache_folder(self) -> str:
        """Our folder for things that clusters reuse: environments, wheels, code."""
        return f"{self.cache}/jupyter-sky"

    @property
    def sent_uv(self) -> str:
        """Where the uv is that we send; machines of another kind may share the folder."""
        return f"{self.cache_folder}/bin/uv-{self.machine}"


def gather_facts(connection: HostShell, code: str = "") -> HostFacts:
    """Ask a host for its facts.

    Parameters
    ----------
    code
        The digest of our code that is wanted, and counts as used where it is; see `send_code`.

    Raises
    ------
    HostError
        If it cannot be a node.
    """
    script = f"within={NVIDIA_WITHIN}\ncode={code}\n{_SCRIPT}"
    rows = [row.partition("\t") for row in connection.run(script).splitlines() if "\t" in row]
    try:
        return _read([(name, value) for name, _, value in rows])
    except (KeyError, ValueError):
        raise HostError(
            "it does not say what it is asked: does a file that its shell reads first, like "
            "~/.bashrc, print something, or is a program like awk or nproc another one there?"
        ) from None


def _read(rows: Sequence[tuple[str, str]]) -> HostFacts:
    """Return the facts that a host has said, by their names.

    Raises
    ------
    HostError
        If it cannot be a node.
    KeyError, ValueError
        If these are none.
    """
    said = {name: value for name, value in rows if name != "gpu"}
    listed = [plain(value) for name, value in rows if name == "gpu"]
    # What is wrong with a driver is among them, in words: nvidia-smi prints that, too.
    taken = [int(value) for name, value in rows if name == "taken"]
    gpus = [found.groups() for each in listed if (found := _GPU.fullmatch(each))]
    if "system" not in said:
        raise HostError(runs_nothing("it did not say its system"))
    if said["system"] != "Linux":
        raise HostError(f"nodes need Linux, and it runs {said['system']}")
    if not all(value.isprintable() for value in said.values()):
        raise ValueError
    return HostFacts(
        system=said["system"],
        machine=said["machine"],
        user=int(said["user"]),
        umask=int(said["umask"], 8),
        home=said["home"],
        runtime_folder=said["runtime"],
        cache=said["cache"],
        refused=said["refused"],
        loose=said["loose"],
        cpus=int(said["cpus"] or 1),
        memory=1024 * int(said["memory"] or 0),
        shared=1024 * int(said["shared"] or 0),
        disk=1024 * int(said["disk"] or 0),
        uv=said["uv"],
        address=said["address"],
        gpus=tuple(name for name, _, _ in gpus),
        gpus_in_use=frozenset(taken).union(
            number for number, (_, _, used) in enumerate(gpus) if _is_much(used)
        ),
        driver=gpus[0][1] if gpus else None,
        has_code="code" in said,
        gpu_trouble="" if gpus or "bare" in said else " ".join(listed).rstrip("."),
    )


def _is_much(megabytes: str) -> bool:
    # Some kinds have no number there, in words.
    return megabytes.isdecimal() and int(megabytes) > _LITTLE


def check_folders(facts: HostFacts) -> None:
    """Refuse a host where nothing of ours can be written, or where others can change it.

    Raises
    ------
    HostError
        With what to do.
    """
    if facts.refused:
        instead = {
            facts.runtime_folder: "set TMPDIR there to a folder with a short path",
            facts.cache_folder: "set XDG_CACHE_HOME there to a folder",
        }
        way = instead.get(facts.refused, "log in as a user who has a home")
        raise HostError(f"nothing can be written to {facts.refused}: {way} where it can")
    if facts.loose:
        raise HostError(
            f"{facts.loose} belongs to or can be changed by somebody else: set XDG_CACHE_HOME "
            "there to a folder of yours"
        )
