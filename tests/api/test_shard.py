"""Parts of all ranks are disjoint, complete, aligned, and of the type that they are parts of."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import jupyter_sky as sky
from jupyter_sky.api.instance import _parse
from tests.api.conftest import topology
from tests.installed import skip_without

lengths = st.integers(0, 60)
worlds = st.integers(1, 9)
seeds = st.integers(0, 2**32)


def places(world_size: int) -> list[sky.InstanceInfo]:
    info = _parse(topology(0, world_size))
    return [replace(info, rank=rank) for rank in range(world_size)]


# -- properties ------------------------------------------------------------------------------------


@given(lengths, worlds)
def test_element_i_goes_to_rank_i_modulo_world_size(length: int, world_size: int) -> None:
    for info in places(world_size):
        part = sky.shard(range(length), info=info)
        assert isinstance(part, range)
        assert all(element % world_size == info.rank for element in part)


@given(lengths, worlds, st.booleans(), seeds)
def test_parts_are_disjoint_and_complete(
    length: int, world_size: int, shuffle: bool, seed: int
) -> None:
    parts = [
        sky.shard(list(range(length)), shuffle=shuffle, seed=seed, info=info)
        for info in places(world_size)
    ]
    assert sorted(element for part in parts for element in part) == list(range(length))
    assert max(map(len, parts)) - min(map(len, parts)) <= 1


@given(lengths, worlds, st.booleans(), seeds)
def test_drop_last_makes_parts_equally_long(
    length: int, world_size: int, shuffle: bool, seed: int
) -> None:
    parts = [
        sky.shard(list(range(length)), shuffle=shuffle, seed=seed, drop_last=True, info=info)
        for info in places(world_size)
    ]
    assert {len(part) for part in parts} == {length // world_size}
    kept = [element for part in parts for element in part]
    assert len(set(kept)) == len(kept)


@given(lengths, worlds, st.booleans(), seeds)
def test_several_stay_aligned(length: int, world_size: int, shuffle: bool, seed: int) -> None:
    import pandas as pd

    array = np.arange(length)
    data = (
        list(range(length)),
        tuple(range(length)),
        range(length),
        array,
        np.stack([array, array], axis=1),
        pd.DataFrame({"n": array}, index=array[::-1]),
        pd.Series(array, index=array + 7),
        {"n": array, "words": [str(n) for n in range(length)]},
        deque(range(length)),
    )
    for info in places(world_size):
        parts = sky.shard(*data, shuffle=shuffle, seed=seed, info=info)
        expected = parts[0]
        assert isinstance(expected, list)
        assert parts[1] == tuple(expected)
        assert list(parts[2]) == expected
        assert parts[3].tolist() == expected
        assert parts[4][:, 1].tolist() == expected
        assert parts[5]["n"].tolist() == expected
        assert parts[6].tolist() == expected
        assert parts[7]["n"].tolist() == expected
        assert parts[7]["words"] == [str(n) for n in expected]
        assert list(parts[8]) == expected
        for part, whole in zip(parts[:2], data[:2], strict=True):
            assert type(part) is type(whole)
        for part, whole in zip(parts[3:8], data[3:8], strict=True):
            assert type(part) is type(whole)


@given(st.integers(30, 60), seeds)
def test_a_seed_is_one_order(length: int, seed: int) -> None:
    first, second = places(2)
    orders = {
        tuple(
            sky.shard(range(length), shuffle=True, seed=each, info=first)
            + sky.shard(range(length), shuffle=True, seed=each, info=second)
        )
        for each in (seed, seed, seed + 1)
    }
    assert len(orders) == 2


def test_an_order_of_each_rank_s_own_is_refused() -> None:
    with pytest.raises(sky.UsageError, match="seed=None.*whole number"):
        sky.shard(range(9), shuffle=True, seed=None)  # type: ignore[arg-type]
    numbers = [sky.shard(range(9), shuffle=True, seed=seed) for seed in (5, np.int64(5))]
    assert numbers[0] == numbers[1]


# -- frameworks ------------------------------------------------------------------------------------


def test_tensors_and_datasets() -> None:
    import torch
    from torch.utils.data import Subset, TensorDataset

    x = torch.arange(10).reshape(5, 2)
    dataset = TensorDataset(x)
    info = places(2)[1]
    tensor, subset = sky.shard(x, dataset, info=info)
    assert tensor.tolist() == [[2, 3], [6, 7]]
    assert tensor.data_ptr() == x[1:].data_ptr()  # a view
    assert isinstance(subset, Subset)
    assert [row[0].tolist() for row in subset] == tensor.tolist()
    tensor, subset = sky.shard(x, dataset, shuffle=True, seed=3, info=info)
    assert [row[0].tolist() for row in subset] == tensor.tolist()
    assert sky.shard(x[:0], shuffle=True, info=info).shape == (0, 2)


def test_arrays_of_jax() -> None:
    skip_without("jax")
    script = """
        import jax, numpy as np
        import jupyter_sky as sky
        from jupyter_sky.api.instance import _parse
        info = _parse(sys.argv[1])
        x = np.arange(10).reshape(5, 2)
        for shuffle in (False, True):
            for data in (x, x[:0]):
                array, part = sky.shard(jax.numpy.asarray(data), data, shuffle=shuffle, info=info)
                assert isinstance(array, jax.Array)
                assert array.tolist() == part.tolist() and array.shape == part.shape
    """
    script = f"import sys\n{textwrap.dedent(script)}"
    subprocess.run([sys.executable, "-c", script, topology(1, 2)], check=True)


def test_tensors_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    class Tensor:
        """Takes no list as its index, as that of TensorFlow, which the tests do not have."""

        def __init__(self, rows: np.ndarray) -> None:
            self.rows, self.shape = rows, rows.shape

        def __len__(self) -> int:
            return len(self.rows)

        def __getitem__(self, key: slice) -> Tensor:
            assert isinstance(key, slice)
            return Tensor(self.rows[key])

    def gather(tensor: Tensor, rows: np.ndarray) -> Tensor:
        return Tensor(tensor.rows[rows])

    monkeypatch.setitem(sys.modules, "tensorflow", Mock(Tensor=Tensor, gather=gather))
    x = np.arange(10).reshape(5, 2)
    for shuffle in (False, True):
        tensor, part = sky.shard(Tensor(x), x, shuffle=shuffle, info=places(2)[1])
        assert tensor.rows.tolist() == part.tolist()


def test_datasets_of_hugging_face() -> None:
    datasets = pytest.importorskip("datasets")
    dataset = datasets.Dataset.from_dict({"n": list(range(10))})
    for shuffle in (False, True):
        part, numbers = sky.shard(dataset, range(10), shuffle=shuffle, info=places(3)[1])
        assert isinstance(part, datasets.Dataset)
        assert list(part["n"]) == list(numbers)


# -- where there is no cluster, and what is refused ------------------------------------------------


def test_the_place_of_this_rank_is_the_default(as_rank: Callable[..., None]) -> None:
    as_rank(1, 2)
    assert sky.shard([0, 1, 2, 3, 4]) == [1, 3]


def test_outside_a_cluster_everything_is_the_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COMPUTE_POOL", raising=False)
    x, y = [1, 2, 3], np.arange(3)
    assert sky.shard(x, y) == (x, y)
    assert sky.shard(y) is y
    assert sorted(sky.shard(x, shuffle=True)) == x


def test_a_single_dictionary_of_columns() -> None:
    assert sky.shard({"a": [1, 2, 3], "b": (4, 5, 6)}, info=places(2)[0]) == {
        "a": [1, 3],
        "b": (4, 6),
    }
    assert sky.shard({}, info=places(2)[0]) == {}


@pytest.mark.parametrize(
    ("data", "sentence"),
    [
        ((), r"write sky.shard\(data\)"),
        (("text",), "str is one value"),
        ((b"bytes",), "bytes is one value"),
        (([1, 2], [1, 2, 3]), "their lengths are 2 and 3"),
        (({"a": [1], "b": []},), r"theirs are \{'a': 1, 'b': 0\}"),
        (((n for n in range(3)),), r"write sky.shard\(list\(data\)\)"),
        (({1, 2},), r"write sky.shard\(list\(data\)\)"),
        ((3,), "int lacks them"),
        ((np.float64(3.0),), "first dimension|lacks them"),
        ((np.array(3.0),), "first dimension"),
    ],
)
def test_what_cannot_be_split_is_one_sentence(data: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(sky.UsageError, match=sentence):
        sky.shard(*data, info=places(2)[0])


def test_lists_need_no_framework() -> None:
    script = (
        "import sys, jupyter_sky as sky; sky.shard([1], (2,), shuffle=True); print(*sys.modules)"
    )
    modules = subprocess.check_output([sys.executable, "-c", script], text=True).split()
    assert not {"numpy", "torch", "pandas"} & set(modules)
