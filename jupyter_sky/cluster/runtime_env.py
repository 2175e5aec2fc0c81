"""What a cluster starts with, beside its nodes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_sky.transport.messages import Packed


@dataclass(frozen=True)
class RuntimeEnv:
    """What surrounds the runs of a cluster: what ranks enter before the first.

    Attributes
    ----------
    life
        A packed object with ``enter_process``, ``enter_app``, ``exit_app`` and ``exit_process``;
        ``None`` where no rank will enter it, as for a cluster that is only looked at.
    blobs
        Its large parts.
    needs
        Names of the notebook that it uses.
    plugins
        Names of the plugins behind it.
    preload
        Modules that each node imports once, before ranks are forked.
    together
        Whether ranks form a group, so that one of them alone cannot go on.
    """

    life: Packed | None
    blobs: Mapping[str, memoryview] = field(default_factory=dict)
    needs: frozenset[str] = frozenset()
    plugins: tuple[str, ...] = ()
    preload: tuple[str, ...] = ()
    together: bool = False


@dataclass(frozen=True)
class Timeouts:
    """How long things may take, in seconds."""

    start: float = 120.0
    form: float = 60.0
    stop: float = 5.0
