"""Splitting data among the ranks: element ``i`` goes to rank ``i % world_size``."""

from __future__ import annotations

import operator
import random
import sys
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, overload

from jupyter_sky.api.instance import InstanceInfo, instance_info
from jupyter_sky.errors import UsageError

T = TypeVar("T")


@overload
def shard(
    data: T,
    /,
    *,
    shuffle: bool = ...,
    seed: int = ...,
    drop_last: bool = ...,
    info: InstanceInfo | None = ...,
) -> T: ...


@overload
def shard(
    data: Any,
    /,
    *aligned: Any,
    shuffle: bool = ...,
    seed: int = ...,
    drop_last: bool = ...,
    info: InstanceInfo | None = ...,
) -> tuple[Any, ...]: ...


def shard(
    *data: Any,
    shuffle: bool = False,
    seed: int = 0,
    drop_last: bool = False,
    info: InstanceInfo | None = None,
) -> Any:
    """Return this rank's part of the data.

    The parts of all ranks are disjoint, together they are everything, and their lengths differ by
    at most one. Outside a cluster the world is one rank, whose part is everything.

    Parameters
    ----------
    *data
        Lists, tuples, ranges, arrays, tensors, DataFrames and Series, dictionaries of columns,
        map-style datasets, or anything else with a length and integer indices. Several of them stay
        aligned: ``x[i]`` still belongs to ``y[i]``.
    shuffle
        Put the elements in a random order first, the same one on all ranks.
    seed
        Which random order: a whole number, the same on all ranks. Give the number of the epoch for
        a new one in each.
    drop_last
        Leave out up to ``world_size - 1`` elements at the end, so that all parts are equally long.
    info
        The rank whose part to return; this rank by default.

    Returns
    -------
    Any
        The part, of the same type as the data, or a tuple with one part for each argument. A range
        stays one unless it is shuffled, a dataset of torch becomes a ``Subset``. As with any slice,
        the part of an array or tensor that is not shuffled shares its memory.

    Raises
    ------
    UsageError
        If data has no length or no integer indices, several have different lengths, or the seed is
        no whole number.

    Examples
    --------
    >>> x, y = sky.shard(x, y, shuffle=True, seed=42)
    """
    if not data:
        raise UsageError("shard() has nothing to split: write sky.shard(data).")
    lengths = [_length(each) for each in data]
    if len(set(lengths)) > 1:
        raise UsageError(
            "shard() keeps its arguments aligned, but their lengths are "
            f"{' and '.join(map(str, lengths))}: make them equally long, or call it for each."
        )
    info = info or instance_info()
    rank, world_size = (info.rank, info.world_size) if info else (0, 1)

    total = lengths[0] - lengths[0] % world_size if drop_last else lengths[0]
    rows: Sequence[int] = range(rank, total, world_size)
    if shuffle:
        order = list(range(lengths[0]))
        random.Random(_whole(seed)).shuffle(order)
        rows = order[rank:total:world_size]
    parts = data if world_size == 1 and not shuffle else tuple(_take(each, rows) for each in data)
    return parts if len(parts) > 1 else parts[0]


def _whole(seed: Any) -> int:
    """Return a seed; without one each rank would draw an order of its own, and parts overlap."""
    if hasattr(seed, "__index__"):  # also one of numpy
        return operator.index(seed)
    raise UsageError(
        f"shard(seed={seed!r}) is not the same order on all ranks: give a whole number, like the "
        "number of the epoch."
    )


def _length(data: Any) -> int:
    if isinstance(data, str | bytes):
        raise UsageError(
            f"shard() splits collections, and {type(data).__name__} is one value: "
            "give it a list of them."
        )
    if isinstance(data, Mapping):
        lengths = {name: _length(column) for name, column in data.items()}
        if len(set(lengths.values())) > 1:
            raise UsageError(f"shard() needs columns of equal length, and theirs are {lengths}.")
        return next(iter(lengths.values()), 0)
    if not hasattr(data, "__getitem__") or not hasattr(data, "__len__"):
        raise UsageError(
            f"shard() needs a length and positions, and {type(data).__name__} lacks them: "
            "write sky.shard(list(data))."
        )
    shape = getattr(data, "shape", None)
    if shape is None:
        return len(data)
    if len(shape) == 0:
        raise UsageError("shard() splits along the first dimension, and this value has none.")
    return int(shape[0])


def _take(data: Any, rows: Sequence[int]) -> Any:
    """Return rows of any kind of data; `rows` is a range unless the data is shuffled."""
    if isinstance(data, Mapping):
        return {name: _take(column, rows) for name, column in data.items()}
    if hasattr(data, "iloc"):  # DataFrame, Series: by position, whatever the index is
        return data.iloc[_key(rows)]
    if hasattr(data, "features") and hasattr(data, "select"):  # a dataset of Hugging Face
        return data.select(rows)
    if hasattr(data, "shape"):  # array, tensor, sparse matrix, polars
        return _of_array(data, rows)
    if isinstance(data, range) and isinstance(rows, range):
        return data[rows.start : rows.stop : rows.step]
    if isinstance(data, tuple):
        return tuple(data[row] for row in rows)
    torch = sys.modules.get("torch")  # a dataset of torch's exists only where torch is imported
    if torch and isinstance(data, torch.utils.data.Dataset):
        return torch.utils.data.Subset(data, rows)
    return [data[row] for row in rows]


def _of_array(data: Any, rows: Sequence[int]) -> Any:
    """Return rows of an array; those of JAX and TensorFlow are not indexed by a list."""
    if isinstance(rows, range):
        return data[_key(rows)]
    jax, tensorflow = sys.modules.get("jax"), sys.modules.get("tensorflow")
    if jax and isinstance(data, jax.Array):
        return data[_integers(rows)]
    if tensorflow and isinstance(data, tensorflow.Tensor):
        return tensorflow.gather(data, _integers(rows))
    return data[_key(rows)]


def _integers(rows: Sequence[int]) -> Any:
    import numpy as np  # which both have imported

    return np.asarray(rows, dtype=np.int64)


def _key(rows: Sequence[int]) -> slice | list[int]:
    """Return the index for rows: a slice where possible, since that copies nothing."""
    return slice(rows.start, rows.stop, rows.step) if isinstance(rows, range) else list(rows)
