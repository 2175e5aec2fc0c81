"""Communication between the ranks of a process group, if there is one."""

from __future__ import annotations

import time
from datetime import timedelta
from typing import Any

from jupyter_sky.errors import UsageError
from jupyter_sky.formatting import format_ranks
from jupyter_sky.transport import present_run

OWN_GROUP = "jupyter_sky"
"""What describes a group of ours, which is made again when it is needed."""

_UPLOADED_WITHIN = timedelta(days=1)
"""How long ranks wait for others that upload; torch's limits are minutes."""

_LONGEST_PAUSE = 0.05
_LOOK_AFTER = 0.2  # seconds

_meetings = ("", 0)
"""The present run, and how often its ranks have met in it."""

_background: tuple[Any, Any] | None = None
"""The process group, and one of the same ranks for what goes on beside it."""


class CheckpointGroup:
    """The ranks of the process group; falsy without a group, when this process is alone."""

    def __init__(self) -> None:
        import torch.distributed as dist

        self._dist = dist if dist.is_available() and dist.is_initialized() else None
        self.rank = self._dist.get_rank() if self._dist else 0
        self.size = self._dist.get_world_size() if self._dist else 1

    def __bool__(self) -> bool:
        return self._dist is not None

    @property
    def is_first(self) -> bool:
        """Whether this is rank 0."""
        return self.rank == 0

    def meet(self, what: str) -> None:
        """Wait until all ranks have called this.

        Raises
        ------
        UsageError
            If some will not come, because they are not in this run or have finished it.
        """
        global _meetings
        store = present_run.group_store()
        if self._dist is None or store is None or self.size < 2:
            return
        here = present_run.ranks()
        if here and len(here) < self.size:
            raise UsageError(
                f"{what} takes all {self.size} ranks of the process group together, and this runs "
                f"on {format_ranks(here)} alone: run it on all ranks."
            )
        run = present_run.identity()
        number = _meetings[1] + 1 if _meetings[0] == run else 1
        _meetings = run, number
        keys = [f"meeting {number} of rank {rank} in {run}" for rank in range(self.size)]
        store.set(keys[self.rank], "")
        pause, patience = 0.001, _LOOK_AFTER
        while not store.check(keys):  # not `wait`, during which an interrupt would not be noticed
            time.sleep(pause)
            pause, patience = min(2 * pause, _LONGEST_PAUSE), patience - pause
            if patience < 0:
                _check_missing(
                    what, [rank for rank, key in enumerate(keys) if not store.check([key])]
                )
                patience = _LOOK_AFTER

    def tell(self, value: Any, group: Any = None) -> list[Any]:
        """Exchange values, in a group of all ranks if one is given; return them by rank."""
        if self._dist is None:
            return [value]
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=group)
        return values

    def background_group(self) -> Any:
        """Return a gloo group that is independent of the ranks' own, for threads and uploads.

        All ranks form it together, when it is first needed.
        """
        global _background
        if self._dist is None:
            return None
        group = self._dist.group.WORLD
        if _background is None or _background[0] is not group:
            made = self._dist.new_group(backend="gloo", group_desc=OWN_GROUP)
            # Not before it is formed, where a rank that is lost is not waited for long.
            self._dist.distributed_c10d._set_pg_timeout(_UPLOADED_WITHIN, made)
            _background = group, made
        return _background[1]


def _check_missing(what: str, missing: list[int]) -> None:
    """Refuse to wait for ranks that have finished the run."""
    if ended := present_run.have_ended(missing):
        raise UsageError(
            f"{what} takes all ranks together, and {format_ranks(ended)} ended the cell "
            "without it: call it on every rank, not below `if rank == 0:`."
        )
