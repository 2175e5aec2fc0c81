"""The progress of nodes that are being prepared, as text and as a bar for each."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from jupyter_sky.formatting import format_count

_BAR = 20  # characters
_MOST = 16  # most nodes with a bar; if there are more, those that are behind
_SHOW_SECONDS_AFTER = 2.0  # seconds for one step after which its elapsed time is shown


def say(report: Callable[[str], None], text: str) -> None:
    """Report something if that is possible: what cleans up goes on where it cannot be shown."""
    with contextlib.suppress(Exception):
        report(text)


@dataclass(frozen=True)
class Step:
    """The present step of one node.

    Attributes
    ----------
    node
        Its name for the user.
    text
        What is being done, or what went wrong.
    share
        The progress, from 0 to 1.
    failed
        Whether it has failed.
    since
        When the step began, as ``time.monotonic`` counts.
    """

    node: str
    text: str = "waiting"
    share: float = 0.0
    failed: bool = False
    since: float = field(default_factory=time.monotonic, compare=False)

    @property
    def is_over(self) -> bool:
        """Whether the node is ready or has failed."""
        return self.failed or self.share >= 1


class Rented(str):
    """Words about machines that cost money from now on, whether or not they become nodes.

    Attributes
    ----------
    price
        Dollars an hour of all of them; ``None`` if that is not known.
    nodes, gpus
        How many they are, and how many GPUs they have together; 0 where those before were taken
        back, and cost nothing.
    ends_within
        Seconds after which they have ended by themselves if nobody goes on with them.
    """

    price: float | None = None
    nodes: int = 0
    gpus: int = 0
    ends_within: float = 0.0

    @classmethod
    def of(
        cls, text: str, price: float | None, nodes: int, gpus: int, ends_within: float
    ) -> Rented:
        """Return the words with what they are about."""
        made = cls(text)
        made.price, made.nodes, made.gpus, made.ends_within = price, nodes, gpus, ends_within
        return made


@dataclass(frozen=True)
class Preparation:
    """The steps of all nodes of a cluster while it starts.

    As text it is one line, which changes when a node is done or the slowest one makes progress.

    Attributes
    ----------
    steps
        The step of each node.
    plans
        A sentence for each environment about what will be installed.
    """

    steps: tuple[Step, ...]
    plans: tuple[str, ...] = ()

    def __str__(self) -> str:
        behind = min((step for step in self.steps if not step.is_over), key=_share, default=None)
        return f"{self._headline}{f'; {behind.node}: {behind.text}' if behind else ''}"

    @property
    def _headline(self) -> str:
        count = len(self.steps)
        ready = sum(step.share >= 1 for step in self.steps)
        failed = sum(step.failed for step in self.steps)
        parts = [f"preparing {format_count(count, 'node')}"]
        if ready:
            parts.append(f"{ready} ready")
        if failed:
            parts.append(f"{failed} failed")
        return ", ".join(parts)

    def bars(self) -> Iterator[str]:
        """Yield the lines to show: how many nodes are ready, and a bar for each node."""
        yield self._headline
        # Failed nodes come first; nodes that are ready are dropped first.
        shown = sorted(self.steps, key=lambda step: (not step.failed, step.is_over))[:_MOST]
        width = max(len(step.node) for step in shown)
        for step in self.steps:
            if step in shown:
                done = round(_BAR * min(step.share, 1))
                bar = "█" * done + "░" * (_BAR - done)
                yield f"  {step.node:<{width}}  {bar}  {_said(step)}"
        if more := len(self.steps) - len(shown):
            yield f"  and {more} more"


def _said(step: Step) -> str:
    seconds = time.monotonic() - step.since
    if step.failed:
        return f"failed: {step.text}"
    if step.is_over or seconds < _SHOW_SECONDS_AFTER:
        return step.text
    return f"{step.text}, {seconds:.0f} s"


def _share(step: Step) -> float:
    return step.share
