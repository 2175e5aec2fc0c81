"""What the user may type as hosts, and what is said of anything else."""

from __future__ import annotations

import pytest

import jupyter_sky as sky
from jupyter_sky.providers.ssh.connection.targets import Target, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", [Target("gpu1")]),
        ("gpu1,gpu2:4", [Target("gpu1"), Target("gpu2", ranks=4)]),
        ("ada@10.0.0.7:2222", [Target("10.0.0.7", "ada", 2222)]),
        ("gpu1:22", [Target("gpu1", port=22)]),
        ("gpu1:2222:8", [Target("gpu1", port=2222, ranks=8)]),
        ("[fe80::1]:2222", [Target("fe80::1", port=2222)]),
        (["gpu1", "gpu-2.lab"], [Target("gpu1"), Target("gpu-2.lab")]),
    ],
)
def test_what_it_reads(text, expected) -> None:
    assert list(parse(text)) == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("gpu1:four", '"gpu1:four" is not a host: type one like `gpu1`'),
        ("gpu1:0", "at least one rank"),
        ("gpu1:99999", "a port below 65536"),
        ("gpu1,gpu1", "gpu1 is there twice: leave one out, or type `gpu1:2`"),
        ("gpu1 -oProxyCommand=x", "is not a host"),
    ],
)
def test_what_it_refuses(text: str, said: str) -> None:
    with pytest.raises(sky.UsageError, match=said):
        sky.SSH(text)


def test_more_nodes_than_hosts_is_one_sentence() -> None:
    pool = sky.ComputePool(provider=sky.SSH("gpu1"), nodes=2)
    with pytest.raises(sky.UsageError, match="2 nodes were asked for, and 1 host is named"):
        pool.__enter__()
