"""The groups that the user's code has made beside the one of all ranks, as for a mesh of devices.

When the group of all ranks is formed again, as after a Stop in a collective, torch forgets these
with it, and has no way to make them anew: a model that is sharded over them could never be trained
on. So they are formed again with it, under the names that they had, since a mesh knows only these.

Each group is formed by all ranks together, also by those that are not in it and by a rank that has
just been started again. So each rank tells the head which ones it has use for.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from jupyter_sky.api.checkpoints.together import OWN_GROUP
from jupyter_sky.errors import GroupBroken
from jupyter_sky.serialization.instances import instances


@dataclass(frozen=True)
class Subgroup:
    """A group of some ranks, or one of all of them beside the first.

    Attributes
    ----------
    name
        What torch calls it.
    ranks
        Its ranks, in order.
    backend
        What it uses.
    description
        What torch says of it, as in its errors.
    seconds
        The time limit of its collectives; ``None`` if it is not known.
    """

    name: str
    ranks: tuple[int, ...]
    backend: str = field(compare=False)
    description: str = field(compare=False)
    seconds: float | None = field(compare=False)


@dataclass
class _Left:
    """The groups that were left: those that nothing refers to are not formed again."""

    size: int
    made: int  # torch numbers them, on each rank
    groups: dict[Subgroup, weakref.ref[Any]]


_left: _Left | None = None
_has_failed = False
"""Whether these groups could not be formed here: the next attempt is made without any."""


def remember() -> None:
    """Remember the groups that there are; they are about to be left."""
    from torch.distributed import distributed_c10d as c10d

    global _left
    world = c10d._world
    groups = {}
    for group, (backend, _) in world.pg_map.items():
        if group is not world.default_pg and group.group_desc != OWN_GROUP:
            name, ranks = world.pg_names[group], tuple(sorted(world.pg_group_ranks[group]))
            each = Subgroup(name, ranks, backend, group.group_desc, _time_limit(group))
            groups[each] = weakref.ref(group)
    _left = _Left(world.default_pg.size(), world.group_count, groups)


def in_use(size: int) -> tuple[int, list[Subgroup] | None]:
    """Return how many groups were made, and those of them that something still refers to.

    Parameters
    ----------
    size
        The number of ranks now; with another one there were other groups.

    Returns
    -------
    int, list of Subgroup
        ``None`` if no group is to be formed again, on any rank, as that has failed.
    """
    global _has_failed
    if _left is None or _left.size != size:
        return 0, []
    if _has_failed:
        _has_failed = False
        return _left.made, None
    if not _left.groups:
        return _left.made, []
    gc.collect()  # those of earlier cells may only refer to themselves
    names = _names_in_meshes({each.name for each in _left.groups})
    groups = _left.groups.items()
    return _left.made, [each for each, group in groups if group() is not None or each.name in names]


def form(groups: Sequence[Subgroup], made: int, seconds: float | None) -> list[tuple[Any, Any]]:
    """Form groups; all ranks call this with the same ones, in the same order.

    Parameters
    ----------
    groups
        The groups.
    made
        How many were numbered before: torch numbers the next ones from there.
    seconds
        How long to wait for the other ranks, if that is not the time limit of their collectives.

    Returns
    -------
    list of pairs
        For each group in which this rank is, the former one, if something refers to it, and the
        new one.

    Raises
    ------
    GroupBroken
        If they cannot be formed here; the next attempt is made without any.
    """
    from torch.distributed import distributed_c10d as c10d

    global _has_failed
    naming = c10d._process_group_name
    try:
        return [*_form(groups, seconds)]
    except Exception as error:
        _has_failed = True
        raise GroupBroken(f"{type(error).__name__}: {error}") from error
    finally:
        c10d._process_group_name = naming
        c10d._world.group_count = max(made, c10d._world.group_count)


def _form(groups: Sequence[Subgroup], seconds: float | None) -> Iterator[tuple[Any, Any]]:
    import torch.distributed as dist
    from torch.distributed import distributed_c10d as c10d

    left = _left.groups if _left else {}
    for each in groups:
        usual = timedelta(seconds=each.seconds) if each.seconds else None
        c10d._process_group_name = partial(_same_name, each.name)
        new = dist.new_group(
            list(each.ranks),
            timeout=timedelta(seconds=seconds) if seconds else usual,
            backend=each.backend,
            group_desc=each.description,
        )
        if dist.get_rank() not in each.ranks:
            continue
        if seconds:
            c10d._set_pg_timeout(usual or c10d._get_default_timeout(each.backend), new)
        former = left[each]() if each in left else None
        if former is not None:
            yield former, new


def _same_name(name: str, ranks: object, use_hashed_name: bool) -> str:
    """Stand for what torch calls to name a new group."""
    return name


def _time_limit(group: Any) -> float | None:
    with suppress(Exception):  # not all backends tell
        options = group._get_backend(group._device_types[0]).options
        return float(options._timeout.total_seconds())
    return None


def _names_in_meshes(names: Collection[str]) -> set[str]:
    from torch.distributed.device_mesh import DeviceMesh

    [meshes] = instances((DeviceMesh,))
    return {each for mesh in meshes for each in _strings([*vars(mesh).values()]) if each in names}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | tuple):
        for each in value:
            yield from _strings(each)
