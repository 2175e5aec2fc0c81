"""What the ranks of a process group tell each other, where there is one."""

from __future__ import annotations

from typing import Any

_background: tuple[Any, Any] | None = None
"""The process group, and one of the same ranks for what goes on beside it."""


class Together:
    """The ranks of the process group; without one, this process alone, which is false."""

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

    def tell(self, value: Any) -> list[Any]:
        """Return what each rank tells, by rank."""
        if self._dist is None:
            return [value]
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value)
        return values

    def background_group(self) -> Any:
        """Return a group of gloo for a thread: what it does never mixes with the ranks' own.

        It is formed by all ranks at once, when it is asked for first.
        """
        global _background
        if self._dist is None:
            return None
        group = self._dist.group.WORLD
        if _background is None or _background[0] is not group:
            _background = group, self._dist.new_group(backend="gloo")
        return _background[1]
