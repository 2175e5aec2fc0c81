"""What a user asks a provider for, and what they are told when it is not possible."""

from __future__ import annotations

import pickle
from dataclasses import replace
from typing import Any

import pytest

import jupyter_sky as sky
from jupyter_sky.providers.spec import ClusterSpec


def test_an_image_is_plain_data() -> None:
    image = sky.Image(
        python="3.12", pip=["numpy"], pip_indexes=["https://a/simple"], env={"LEVEL": 1}
    )
    assert image.pip == ("numpy",)
    assert image.pip_indexes == (sky.PipIndex("https://a/simple"),)
    assert image.env == {"LEVEL": "1"}
    assert pickle.loads(pickle.dumps(image)) == image
    assert replace(image, pip=[*image.pip, "pandas"]).pip == ("numpy", "pandas")


def test_values_of_variables_are_not_shown() -> None:
    assert "secret" not in repr(sky.Image(env={"WANDB_API_KEY": "secret"}))


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        ({"pip": "torch"}, 'pip=["torch"]'),
        ({"apt": "git"}, 'apt=["git"]'),
        ({"pip": [1]}, "not a list of strings"),
        ({"python": "2.7"}, 'python="3.12"'),
        ({"pip_indexes": "https://a"}, "pip_indexes is a list"),
        ({"env": ["A=1"]}, 'env={"NAME": "value"}'),
        ({"env": {"A": None}}, "env['A'] is not a string"),
    ],
)
def test_a_wrong_image_says_what_to_type(values: dict[str, Any], instead: str) -> None:
    with pytest.raises(sky.UsageError) as raised:
        sky.Image(**values)
    assert instead in str(raised.value)


@pytest.mark.parametrize(
    ("given", "read"),
    [("8", "8"), ("8+", "8+"), (8, "8"), ("64GB", "64"), ("64 gb+", "64+"), (None, None)],
)
def test_amounts(given: Any, read: str | None) -> None:
    spec = ClusterSpec("demo", cpus=given, memory=given)
    assert (spec.cpus, spec.memory) == (read, read)


@pytest.mark.parametrize(
    ("values", "instead"),
    [
        ({"name": "a b"}, 'like "train-1"'),
        ({"name": "../etc"}, 'like "train-1"'),
        ({"nodes": 0}, "nodes is 0: type a whole number"),
        ({"nodes": "4"}, "nodes is '4': type a whole number"),
        ({"nodes": True}, "type a whole number"),
        ({"procs_per_node": 1.5}, "type a whole number"),
        ({"image": "einops"}, 'write image=sky.Image(pip=["einops"])'),
        ({"cpus": "many"}, 'cpus="8+"'),
        ({"memory": "0"}, 'memory="8+"'),
        ({"idle_timeout": 0}, "idle_timeout=600"),
    ],
)
def test_a_wrong_cluster_says_what_to_type(values: dict[str, Any], instead: str) -> None:
    with pytest.raises(sky.UsageError) as raised:
        ClusterSpec(**{"name": "demo", **values})
    assert instead in str(raised.value)
