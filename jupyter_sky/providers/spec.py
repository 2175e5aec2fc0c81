"""The user's specification for a provider: accelerators, an image, a number of nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path

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
        The last CUDA version that supports it, like ``"12.9"``; ``None`` if it does not run CUDA.
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
        """Return whether a device is one of these, given the driver's name for it.

        An L40 is not an L4; an "NVIDIA GeForce RTX 2080 Ti" is an RTX2080Ti.
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
        The packages to take from it; empty for any.
    cuda_url
        The address to use instead for nodes with an NVIDIA GPU.
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
    """What to install on nodes before their ranks start.

    Parameters
    ----------
    python
        Version of Python, like ``"3.12"``; ``None`` for the notebook's.
    pip
        Requirements in pip's syntax: ``["numpy", "transformers>=4.40"]``, or ``"-r FILE"`` for a
        requirements file.
    pip_indexes
        Package indexes besides the default one: addresses or `PipIndex`. A folder of wheels on this
        machine is sent to the nodes, for nodes that cannot reach an index.
    like
        Further packages: ``"imports"`` for those that the notebook imports, in its versions; a
        ``uv.lock``, ``pyproject.toml``, ``requirements.txt`` or conda ``environment.yml``; or
        ``None``. Versions in `pip` take precedence.
    apt
        Names of system packages.
    env
        Environment variables of all ranks.
    shell_vars
        Environment variables whose values are the outputs of shell commands on the node.
    includes
        Files and folders of this machine to copy to the nodes.
    excludes
        Patterns of files in these that are not copied.
    bootstrap
        Shell commands that each machine runs once, after all of this and before its ranks start.
    pins, wheels, constraints
        The resolved form of `like`: requirements, wheel files of this machine, and limits of
        versions.
    """

    python: str | None = None
    pip: Sequence[str] = ()
    pip_indexes: Sequence[PipIndex | str] = ()
    like: str | None = "imports"
    apt: Sequence[str] = ()
    # Values are often keys and tokens, and a notebook saves every repr that it shows.
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    shell_vars: Mapping[str, str] = field(default_factory=dict)
    includes: Sequence[str] = ()
    excludes: Sequence[str] = ()
    bootstrap: Sequence[str] = ()
    pins: Sequence[str] = ()
    wheels: Sequence[str] = ()
    constraints: Sequence[str] = ()

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
        typed = ("pip", "apt", "includes", "excludes", "bootstrap")
        for name in (*typed, "pins", "wheels", "constraints"):
            object.__setattr__(self, name, _strings(name, getattr(self, name)))
        object.__setattr__(self, "pip_indexes", _indexes(self.pip_indexes))
        for name in ("env", "shell_vars"):
            object.__setattr__(self, name, _variables(name, getattr(self, name)))

    @property
    def packages_file(self) -> str:
        """The name of the file that `like` is; where it is, the user knows."""
        return "" if self.like in (None, "imports") else Path(str(self.like)).name


UNATTENDED = 7 * 86400.0
"""Seconds that a run goes on without a notebook, if the user does not say otherwise."""


@dataclass(frozen=True)
class ClusterSpec:
    """The specification of a cluster.

    Parameters
    ----------
    name
        Letters, digits, ``.``, ``_`` and ``-``; it names files and instances.
    nodes
        Number of nodes.
    procs_per_node
        Ranks on each node; ``None`` for one per accelerator, or one if there are none.
    accelerator
        The accelerators of each node, as an `Accelerator` or a short form like ``"L4:4"``.
    cpus, memory
        Processors and gigabytes of each node: exactly (``"8"``) or at least (``"8+"``).
    image
        What to install on each node.
    idle_timeout
        Seconds without a run after which the cluster ends itself; ``None`` for the provider's
        default.
    autostop
        Whether it is then stopped instead, keeping its disks, if the provider supports that.
    replace
        Whether to replace a lost node by another one.
    patience
        Seconds to wait for a node that neither the notebook nor the other nodes can reach; ``None``
        for 15 seconds while something runs or waits to run, a minute while the cluster starts, and
        10 minutes otherwise.
    unattended
        Seconds for which a run continues without a notebook before its nodes end.
    volumes
        Data in buckets and shared folders, mounted at paths of each node.
    former_price
        Dollars an hour of the lost cluster whose place it takes, to which the user has agreed.
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
    former_price: float | None = None

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", str(self.name)):
            raise UsageError(
                f"cluster name {self.name!r} cannot be used: use up to 63 letters, digits, "
                '".", "_" and "-", like "train-1".'
            )
        _check_count("nodes", self.nodes)
        if self.procs_per_node is not None:
            _check_count("procs_per_node", self.procs_per_node)
        if not isinstance(self.accelerator, Accelerator | str | None):
            raise UsageError(
                f'accelerator={self.accelerator!r} is not one: write which, like accelerator="L4", '
                'or accelerator="L4:4" for four on each node.'
            )
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
        """The accelerators of each node, even if given as text like "L4:4"; ``None`` for none."""
        if not isinstance(self.accelerator, str):
            return self.accelerator
        name, _, count = self.accelerator.partition(":")
        return Accelerator(name, int(count or 1))


def _repr(made: PipIndex | Image) -> str:
    """Return the repr of a dataclass, which notebooks save, without tokens in addresses."""
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
    """Normalise an amount for providers: a number, with "+" if more is acceptable."""
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
