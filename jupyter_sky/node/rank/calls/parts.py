"""The parts of a rank that calls need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from jupyter_sky.node.rank.inbox import Inbox
from jupyter_sky.node.rank.interrupts import Interrupts
from jupyter_sky.node.rank.ipython.shell import RankShell
from jupyter_sky.node.rank.namespace.namespace import Namespace
from jupyter_sky.transport.protocol.events import Told


@dataclass(frozen=True)
class RankParts:
    """The parts of a rank.

    Attributes
    ----------
    rank
        Its number.
    inbox, interrupts, namespace, shell, folder
        As in `RankWorker`.
    tell
        Sends a message to the notebook; callable from any thread.
    """

    rank: int
    inbox: Inbox
    interrupts: Interrupts
    namespace: Namespace
    shell: RankShell
    folder: Path
    tell: Callable[[Told], None]
