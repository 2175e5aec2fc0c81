"""The port that is kept for those who meet the head."""

from __future__ import annotations

import contextlib
import socket
from pathlib import Path

import pytest

from jupyter_sky.node.rank import head_port
from jupyter_sky.node.rank.head_port import HeadPort


def test_no_connection_gets_the_port_before_a_script_listens_on_it() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    head = HeadPort()
    ports = [head.reserve("127.0.0.1") for _ in range(20)]
    head.release()
    assert not [port for port in ports if first <= port <= last]
    with socket.create_server(("127.0.0.1", ports[-1])):
        assert head.reserve("127.0.0.1") not in ports[-1:]
    head.release()


@pytest.mark.parametrize(
    ("given_out", "within"),
    [("20003 65535", range(20_000, 20_003)), ("1024 65535", range(1024, 65_536)), ("", None)],
)
def test_systems_that_give_out_more_or_do_not_say_it(
    given_out: str, within: range | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "range"
    told.write_text(given_out)
    monkeypatch.setattr(head_port, "_EPHEMERAL", told)
    heads = [HeadPort() for _ in range(6)]  # more than there may be
    with contextlib.ExitStack() as stack:
        for head in heads:
            stack.callback(head.release)
        ports = [head.reserve("127.0.0.1") for head in heads]
    assert len(set(ports)) == 6
    if within:
        assert sum(port in within for port in ports) == min(6, len(within))
