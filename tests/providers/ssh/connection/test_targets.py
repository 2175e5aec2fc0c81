"""What the user may type as hosts, and what is said of anything else."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

import jupyter_sky as sky
from jupyter_sky.providers.ssh.connection.ssh_config import read_login
from jupyter_sky.providers.ssh.connection.targets import Target, parse, parse_one


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu1", [Target("gpu1")]),
        ("gpu1,gpu2:4", [Target("gpu1"), Target("gpu2", ranks=4)]),
        ("ada@10.0.0.7:2222", [Target("10.0.0.7", "ada", 2222)]),
        ("gpu1:22", [Target("gpu1", port=22)]),
        ("gpu1:2222:8", [Target("gpu1", port=2222, ranks=8)]),
        ("[fe80::1]:2222", [Target("fe80::1", port=2222)]),
        ("[fe80::1%br-lab]", [Target("fe80::1%br-lab")]),
        ("gpu1:443:8", [Target("gpu1", port=443, ranks=8)]),
        ("ada@lab.org@gpu1", [Target("gpu1", "ada@lab.org")]),
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
        ("gpu1,gpu1", "gpu1 is named twice: leave one out, or type `gpu1:2`"),
        ("gpu1 -oProxyCommand=x", "is not a host"),
        ("fd00::12", r"fd00::12 could end in a port or in ranks: type `\[fd00::12\]`"),
        ("ada@fd00::12", r"type `ada@\[fd00::12\]`"),
        (3, r'hosts=3 has no names: write them as in hosts="gpu1,gpu2:4"'),
        (["gpu1", 2], "has no names"),
    ],
)
def test_what_it_refuses(text: Any, said: str) -> None:
    with pytest.raises(sky.UsageError, match=said):
        sky.SSH(text)


@given(
    st.text(max_size=30)
    | st.from_regex(r"(a@|\[)?[a-z0-9:.]{0,12}\]?(:[0-9]{0,12}){0,3}(,g)?", fullmatch=True)
)
@settings(max_examples=150, deadline=None)
@example("gpu1:" + "1" * 5000)
@example("gpu1\n0")
def test_anything_is_hosts_or_a_sentence(text: str) -> None:
    try:
        targets = parse(text)
    except sky.UsageError as error:
        assert len(str(error).splitlines()) == 1
        return
    for target in targets:
        # Machines are found again by it, and it can be typed.
        assert parse_one(str(target)) == replace(target, ranks=None)
        port, ranks = target.port or 22, target.ranks or 1
        typed = f"{replace(target, port=port)}:{ranks}"
        assert parse(typed) == (replace(target, port=port, ranks=ranks),)


def test_any_number_after_a_host_alone_is_a_port() -> None:
    assert parse_one("ada@jump:443") == Target("jump", "ada", 443)
    with pytest.raises(sky.UsageError, match="there are no ranks on it"):
        parse_one("jump:443:2")


CONFIG_WORDS = st.sampled_from(
    [
        *("Host", "Match", "Include", "Port", "HostName", "User", "IdentityFile", "ProxyJump"),
        *("ConnectTimeout", "UserKnownHostsFile", "CertificateFile", "CanonicalizeHostname"),
        *("gpu1", "*", "!gpu1", "all", "user", "host", "final", "yes", "none", "22", "abc"),
        *("~nobody-here/x", "~/.ssh/config", "'", '"', "=", "#", "%h", "%", "%z", "1m30s", "\0"),
        *("9" * 5000, "-1", "[", ",", "a@b:c"),
    ]
)


@example(text=f"IdentityFile {'9' * 5000}")
@given(text=st.lists(st.lists(CONFIG_WORDS, max_size=4).map(" ".join), max_size=6).map("\n".join))
@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_configuration_is_read_or_refused_with_a_sentence(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir(exist_ok=True)
    (tmp_path / ".ssh" / "config").write_text(text)
    try:
        login = read_login(Target("gpu1"))
    except sky.UsageError as error:
        assert str(error).endswith((".", "`", "?"))
        return
    assert 0 < login.port < 65536


def test_more_nodes_than_hosts_is_one_sentence() -> None:
    pool = sky.ComputePool(provider=sky.SSH("gpu1"), nodes=2)
    with pytest.raises(sky.UsageError, match="2 nodes were asked for, and 1 host is named"):
        pool.__enter__()
