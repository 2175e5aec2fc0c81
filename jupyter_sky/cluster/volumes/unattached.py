"""Volumes of a cluster that cannot be attached, as one of its nodes is gone or does not answer."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence

from jupyter_sky.cluster.network.connection import Connection, ConnectionListener
from jupyter_sky.cluster.volumes import mount
from jupyter_sky.errors import SkyError
from jupyter_sky.providers.base import AgentGone, Machine, Provider
from jupyter_sky.providers.buckets.volume import Volume
from jupyter_sky.providers.cloud import CloudProvider
from jupyter_sky.providers.sessions.mfa import without_questions


class NotWrittenBack(SkyError):
    """Machines are not released, as they have files of volumes that exist nowhere else."""


async def write_back(
    machines: Sequence[Machine], volumes: Sequence[Volume], provider: Provider
) -> list[str]:
    """Write back what ranks have written, on the machines that answer.

    Parameters
    ----------
    machines
        The machines of the cluster.
    volumes
        Its volumes.
    provider
        Where its nodes come from, with the user's settings.

    Returns
    -------
    list of str
        Sentences about files that may exist only on a machine that is still there.
    """
    if all(each.read_only for each in volumes):
        return []
    connections = [Connection(each, ConnectionListener()) for each in machines]
    try:
        opened = await asyncio.gather(
            *(each.open() for each in connections), return_exceptions=True
        )
        pairs = list(zip(connections, opened, strict=True))
        there = [each for each, answer in pairs if not isinstance(answer, BaseException)]
        if there:
            # Only a notebook that is connected renews credentials. Where there are none to be had
            # without a question, those that nodes have may still do.
            with without_questions(), contextlib.suppress(Exception):
                await mount.mount(there, volumes, provider, lambda notes: None)
        said, unanswered = await mount.write_back(there)
    finally:
        for each in connections:
            each.close()
    silent = [
        mount.not_known(each.name, str(answer))
        for each, answer in pairs
        if isinstance(answer, Exception) and not isinstance(answer, AgentGone)
    ]
    return [*mount.sentences(said)[1], *unanswered, *silent]


def refuse_to_lose(
    name: str, provider: Provider, troubles: Sequence[str], has_lost_node: bool = False
) -> None:
    """Refuse to release the machines of a cluster that cannot be attached; see `refuse`.

    Parameters
    ----------
    name, provider
        The cluster, and where its nodes come from.
    troubles
        What `write_back` has returned.
    has_lost_node
        Whether it is known that a node is gone, which is then the reason.

    Raises
    ------
    NotWrittenBack
        If there are such files.
    """
    why = "has lost a node, and " if has_lost_node else ""
    refuse(
        provider,
        f"{name} {why}stays as it was",
        troubles,
        f"`%sky down {name}` tries again, and `%sky down --discard {name}` ends the cluster "
        "without them",
    )


def refuse(provider: Provider, what: str, troubles: Sequence[str], advice: str) -> None:
    """Refuse to release rented machines with files that exist nowhere else.

    Parameters
    ----------
    provider
        Where the machines come from.
    what
        What is refused, or is to stay.
    troubles
        Sentences about these files.
    advice
        What to do.

    Raises
    ------
    NotWrittenBack
        If there are such files.
    """
    if troubles and isinstance(provider, CloudProvider):
        raise NotWrittenBack(f"{what}: {'; '.join(troubles)}: {advice}.")
