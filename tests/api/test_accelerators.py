from __future__ import annotations

import pickle

import pytest

import jupyter_sky as sky
from jupyter_sky.providers.spec import Accelerator


def test_factories() -> None:
    assert sky.accelerators.T4() == Accelerator("T4", count=1, memory=16, cuda="13.0")
    assert sky.accelerators.A100(count=8).count == 8
    assert sky.accelerators.A100_80GB().memory == 80
    assert sky.accelerators.MI300X().cuda is None
    assert sky.accelerators.Trainium().cuda is None
    assert {"T4", "A100_80GB", "parse"} <= set(dir(sky.accelerators))


@pytest.mark.parametrize(
    ("text", "name", "count"),
    [
        ("L4", "L4", 1),
        ("L4:4", "L4", 4),
        (" l4 : 4 ", "L4", 4),
        ("a100-80gb", "A100-80GB", 1),
        ("A100_80GB:8", "A100-80GB", 8),
        ("NVIDIA RTX 4090", "RTX4090", 1),
        ("Tesla-T4", "T4", 1),
        ("rtx6000 ada", "RTX6000-Ada", 1),
    ],
)
def test_short_forms(text: str, name: str, count: int) -> None:
    accelerator = sky.accelerators.parse(text)
    assert (accelerator.name, accelerator.count) == (name, count)


def test_every_name_reads_and_writes_itself() -> None:
    for name in sky.accelerators.names():
        for count in (1, 8):
            accelerator = sky.accelerators.parse(f"{name}:{count}")
            assert accelerator.name == name
            assert sky.accelerators.parse(str(accelerator)) == accelerator
        assert getattr(sky.accelerators, name.replace("-", "_"))() == sky.accelerators.parse(name)


@pytest.mark.parametrize(
    ("text", "instead"),
    [
        ("A10O", "did you mean A10"),
        ("H10", "H100"),
        ("a100-90gb", "A100-80GB"),
        ("banana", "type one like L4"),
        ("", "type one like L4"),
        ("L4:", 'type "L4:4"'),
        ("L4:0", 'type "L4:4"'),
        ("L4:two", 'type "L4:4"'),
        ("L4:-1", 'type "L4:4"'),
        ("L4:1.5", 'type "L4:4"'),
    ],
)
def test_what_is_no_accelerator_says_what_to_type(text: str, instead: str) -> None:
    with pytest.raises(sky.UsageError) as raised:
        sky.accelerators.parse(text)
    assert instead in str(raised.value)
    assert "\n" not in str(raised.value)


def test_an_unknown_factory_is_an_attribute_error_too() -> None:
    assert not hasattr(sky.accelerators, "H1000000")
    with pytest.raises(sky.UsageError, match="did you mean"):
        _ = sky.accelerators.A1000
    with pytest.raises(sky.UsageError, match="count is 0"):
        sky.accelerators.T4(count=0)


def test_they_travel() -> None:
    accelerator = sky.accelerators.L40S(count=2)
    assert pickle.loads(pickle.dumps(accelerator)) == accelerator
