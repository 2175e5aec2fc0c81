"""Checks that nodes and this process understand each other's messages and pickles."""

from __future__ import annotations

from collections.abc import Mapping

import jupyter_sky
from jupyter_sky.errors import SkyError
from jupyter_sky.formatting import keys_by_value
from jupyter_sky.transport.protocol.messages import Welcome
from jupyter_sky.transport.protocol.versions import PACKAGES, versions

Versions = Mapping[str, str]


class VersionMismatch(SkyError):
    """A node has a Python or jupyter_sky that is incompatible with this process."""


def check_agent(welcome: Welcome) -> None:
    """Compare an agent's jupyter_sky with this one, before reading anything else from it.

    Messages and pickles name modules and functions of jupyter_sky, which move between versions.

    Raises
    ------
    VersionMismatch
        If it is another version.
    """
    theirs, ours = welcome.get("version", "0.1.0"), jupyter_sky.__version__
    if theirs != ours:
        name = welcome["cluster"]
        raise VersionMismatch(
            f"cluster {name} was started by jupyter_sky {theirs} and this is {ours}, which cannot "
            f"use it: end it with `%sky down {name}` and start it again, or install "
            f"jupyter_sky {theirs} where the notebook runs."
        )


def check(nodes: Mapping[str, Versions]) -> tuple[str, ...]:
    """Compare every node with this process.

    Parameters
    ----------
    nodes
        The versions of each node, by its host.

    Returns
    -------
    tuple of str
        Sentences for the user.

    Raises
    ------
    VersionMismatch
        If a node has another minor version of Python.
    """
    here = versions()
    groups = keys_by_value({host: tuple(sorted(there.items())) for host, there in nodes.items()})
    return tuple(
        warning
        for there, hosts in groups.items()
        for warning in compare(here, dict(there), _listed(hosts))
    )


def compare(here: Versions, there: Versions, host: str = "the node") -> list[str]:
    """Compare the versions of a node with those of the notebook; see `check`.

    A package that one side lacks is not a difference: a laptop without torch can use machines that
    have it.
    """
    mine, other = _minor(here["python"]), _minor(there["python"])
    if mine != other:
        raise VersionMismatch(
            f"{host} has Python {other} and the notebook Python {mine}, between which functions "
            f"cannot travel: run the notebook with Python {other}, or start the cluster again with "
            f"Python {mine} on its nodes."
        )
    if here["jupyter_sky"] != there.get("jupyter_sky"):
        raise VersionMismatch(
            f"the ranks on {host} have jupyter_sky {there.get('jupyter_sky', '0.1.0')} and the "
            f"notebook {here['jupyter_sky']}: end the cluster with `%sky down` and start it again."
        )
    return [
        f"{host} has {name} {theirs} and the notebook {ours}, so that not every object may "
        f"travel between them: `%pip install {name}=={theirs}` makes them the same."
        for name in PACKAGES
        if (ours := _public(here.get(name))) and (theirs := _public(there.get(name)))
        if ours != theirs
    ]


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _public(version: str | None) -> str:
    # `2.13.0+cpu` and `2.13.0+cu130` are one version, built for different hardware.
    return (version or "").partition("+")[0]


def _listed(hosts: list[str]) -> str:
    others = len(hosts) - 1
    return hosts[0] if not others else f"{hosts[0]} (like {others} other{'s' * (others > 1)})"
