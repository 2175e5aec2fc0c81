"""What the user asks a provider for: accelerators, an image, a number of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import without_secrets
from jupyter_sky.providers.buckets.volume import Volume

_MOST = 10_000
"""How many there can be of anything: a slip of the finger should not take all memory."""


@dataclass(frozen=True)
class Accelerator:
    """The accelerators of one node.

    Parameters
    ----------
    name
        The catalogue's name, like ``"A100"``; see `jupyter_sky.accelerators`.
    count
        How many of them each node has.
    memory
        Gigabytes of memory of one accelerator.
    cuda
        The newest CUDA that it supports, like ``"12.9"``; ``None`` for what does not run CUDA.
    """

    name: str
    count: int = 1
    memory: float | None = None
    cuda: str | None = None

    def __post_init__(self) -> None:
        _check_count(f"{self.name}'s count", self.count)

    def __str__(self) -> str:
        return self.name if self.count == 1 else f"{self.name}:{self.count}"

    def fits(self, device: str) -> bool:
        """Return whether a device is one of these, by the name that its driver gives it.

        An L40 is no L4; an "NVIDIA GeForce RTX 2080 Ti" is an RTX2080Ti.
        """
        wanted = re.sub(r"[\s_]", "", self.name.split("-")[0]).lower()
        words = re.split(r"[\s_-]+", device.lower())
        return any(
            "".join(words[first:last]) == wanted
            for first in range(len(words))
            for last in range(first + 1, len(words) + 1)
        )


@dataclass(frozen=True)
class PipIndex:
    """An extra package index.

    Parameters
    ----------
    url
        Its address.
    packages
        The packages to take from it; none named: any.
    cuda_url
        The address to take in its place for a node that turns out to have an NVIDIA GPU.
    """

    url: str
    packages: Sequence[str] = ()
    cuda_url: str | None = None

    def __repr__(self) -> str:
        return _repr(self)

    def __post_init__(self) -> None:
        object.__setattr__(self, "packages", _strings("PipIndex packages", self.packages))


@dataclass(frozen=True)
class Image:
    """What is installed on a node before ranks start there.

    Parameters
    ----------
    python
        Version of Python, like ``"3.12"``; ``None`` takes the notebook's.
    pip
        Requirements as pip writes them: ``["numpy", "transformers>=4.40"]``; ``"-r FILE"`` is
        for a file of them.
    pip_indexes
        Package indexes to look at beside the default one: addresses or `PipIndex`. A folder of
        wheels on this machine is sent to the nodes, for those that reach no index.
    like
        What nodes have beside that: ``"imports"`` for the packages that the notebook imports, in
        its versions; a ``uv.lock``, ``pyproject.toml``, ``requirements.txt`` or conda
        ``environment.yml``; or ``None``. Where `pip` names a version, that one is taken.
    apt
        Names of system packages.
    env
        Environment variables of every rank.
    shell_vars
        Environment variables whose value is what a shell command prints on the node.
    includes
        Files and folders of this machine that go to the node.
    excludes
        Patterns of what stays behind of them.
    bootstrap
        Shell commands that each machine runs once, after all of that and before its ranks start.
    pins, wheels
        What `like` came to when a cluster started: requirements, and wheel files of this machine.
    """

    python: str | None = None
    pip: Sequence[str] = ()
    pip_indexes: Sequence[PipIndex | str] = ()
    like: str | None = "imports"
    apt: Sequence[str] = ()
    # Values often are keys and tokens, and a notebook saves every repr that it shows.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    shell_vars: Mapping[str, str] = field(default_factory=dict)
    includes: Sequence[str] = ()
    excludes: Sequence[str] = ()
    bootstrap: Sequence[str] = ()
    pins: Sequence[str] = ()
    wheels: Sequence[str] = ()

    def __repr__(self) -> str:
        return _repr(self)

    def __post_init__(self) -> None:
        if self.python is not None and not re.fullmatch(r"3(\.\d+){1,2}", str(self.python)):
            raise UsageError(
                f'python={self.python!r} is not a version of Python: type python="3.12".'
            )
        if self.like is not None and not isinstance(self.like, str):
            raise UsageError(
                f'like={self.like!r} is no file: type like="uv.lock", "imports", or None.'
            )
        for name in ("pip", "apt", "includes", "excludes", "bootstrap", "pins", "wheels"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "pip_indexes", _indexes(self.pip_indexes))
        for name in ("env", "shell_vars"):
            object.__setattr__(self, name, _variables(name, getattr(self, name)))


UNATTENDED = 7 * 86400.0
"""Seconds that a run goes on without a notebook, if the user does not say otherwise."""


@dataclass(frozen=True)
class ClusterSpec:
    """What a cluster is made of.

    Parameters
    ----------
    name
        Letters, digits, ``.``, ``_`` and ``-``; it names files and instances.
    nodes
        Number of nodes.
    procs_per_node
        Ranks on each node; ``None`` means one for each accelerator, and one where there is none.
    accelerator
        The accelerators of each node, as an `Accelerator` or a short form like ``"L4:4"``.
    cpus, memory
        Processors and gigabytes of each node, exactly (``"8"``) or at least (``"8+"``).
    image
        What is installed on each node.
    idle_timeout
        Seconds without a run after which the cluster ends itself; ``None`` takes the provider's.
    autostop
        Whether it is stopped then, and its disks stay, where the provider can do that.
    replace
        Whether another node takes the place of one that is lost.
    patience
        Seconds for which a node is waited for that neither the notebook nor the other nodes reach;
        ``None`` for 15 seconds while something runs or waits to run, and 10 minutes otherwise.
    unattended
        Seconds that a run goes on while no notebook is connected, before its nodes end.
    volumes
        Data in buckets and shared folders, at paths of each node.
    """

    name: str
    nodes: int = 1
    procs_per_node: int | None = None
    accelerator: Accelerator | str | None = None
    cpus: str | int | None = None
    memory: str | float | None = None
    image: Image = field(default_factory=Image)
    idle_timeout: float | None = None
    autostop: bool = False
    replace: bool = False
    patience: float | None = None
    unattended: float = UNATTENDED
    volumes: tuple[Volume, ...] = ()

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", str(self.name)):
            raise UsageError(
                f"cluster name {self.name!r} cannot be used: use up to 63 letters, digits, "
                '".", "_" and "-", like "train-1".'
            )
        _check_count("nodes", self.nodes)
        if self.procs_per_node is not None:
            _check_count("procs_per_node", self.procs_per_node)
        if not isinstance(self.image, Image):
            raise UsageError(
                f'image={self.image!r} is not an image: write image=sky.Image(pip=["einops"]).'
            )
        object.__setattr__(self, "cpus", _amount("cpus", self.cpus))
        object.__setattr__(self, "memory", _amount("memory", self.memory))
        for name in ("idle_timeout", "patience", "unattended"):
            value = getattr(self, name)
            if value is not None and not _is_positive(value):
                raise UsageError(f"{name}={value!r} is not a time: type seconds, like {name}=600.")

    @property
    def wanted_gpus(self) -> Accelerator | None:
        """The accelerators of each node, also where only a name was given; ``None`` for none."""
        wanted = self.accelerator
        return Accelerator(wanted) if isinstance(wanted, str) else wanted


def _repr(made: PipIndex | Image) -> str:
    """Return what a dataclass is shown as: a notebook saves it, and addresses can have tokens."""
    shown = ", ".join(
        f"{each.name}={getattr(made, each.name)!r}" for each in fields(made) if each.repr
    )
    return without_secrets(f"{type(made).__name__}({shown})")


def _check_count(name: str, value: object) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(f"{name} is {value!r}: type a whole number of 1 or more.")
    if value > _MOST:
        raise UsageError(f"{name} is {value:,}: type a whole number of {_MOST:,} at most.")


def _is_positive(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0


def _amount(name: str, value: object) -> str | None:
    """An amount as providers read it: a number, with "+" where more will do."""
    if value is None:
        return None
    amount = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:GB?|GiB)?(\+?)", str(value), re.IGNORECASE)
    if amount is None or float(amount[1]) == 0:
        raise UsageError(f'{name}={value!r} is not an amount: type {name}="8" or {name}="8+".')
    return amount[1] + amount[2]


def _strings(name: str, values: object) -> tuple[str, ...]:
    if isinstance(values, str):
        raise UsageError(f'{name} is one string: make it a list, {name}=["{values}"].')
    if not isinstance(values, Sequence) or not all(isinstance(value, str) for value in values):
        raise UsageError(f"{name}={values!r} is not a list of strings.")
    return tuple(values)


def _indexes(values: object) -> tuple[PipIndex, ...]:
    if isinstance(values, str | PipIndex) or not isinstance(values, Sequence):
        raise UsageError("pip_indexes is a list: type pip_indexes=[sky.PipIndex(url)].")
    return tuple(value if isinstance(value, PipIndex) else PipIndex(value) for value in values)


def _variables(name: str, values: object) -> dict[str, str]:
    if not isinstance(values, Mapping):
        raise UsageError(f'{name} is a dictionary: type {name}={{"NAME": "value"}}.')
    for key, value in values.items():
        if not isinstance(key, str) or isinstance(value, bytes) or value is None:
            raise UsageError(f"{name}[{key!r}] is not a string.")
    return {key: str(value) for key, value in values.items()}
