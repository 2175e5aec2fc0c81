"""The ports that are kept for those who meet the head."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_sky.errors import SkyError
from jupyter_sky.node.rank.group import head_ports
from jupyter_sky.node.rank.group.head_ports import HeadPorts


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[HeadPorts]:
    monkeypatch.delenv("JUPYTER_SKY_HEAD_FD", raising=False)
    ports = HeadPorts()
    yield ports
    ports.release()


def test_no_connection_gets_the_port_before_a_script_listens_on_it(head: HeadPorts) -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = [head.reserve("127.0.0.1") for _ in range(20)]
    assert not [port for port in ports if first <= port <= last]
    assert all(len({*ports[at : at + 4]}) == 4 for at in range(17))  # those kept at one time
    head.release()
    socket.create_server(("127.0.0.1", ports[-1])).close()


def test_a_group_gets_the_port_that_was_reserved_for_it(head: HeadPorts) -> None:
    """Also if another one was reserved after it, by a kernel that is gone, as it turns out."""
    wanted, other = (head.reserve("127.0.0.1") for _ in range(2))
    head.hand_over(wanted)
    with socket.socket(fileno=int(os.environ["JUPYTER_SKY_HEAD_FD"])) as given:
        assert given.getsockname() == ("127.0.0.1", wanted)
    socket.create_server(("127.0.0.1", other)).close()
    head.hand_over(other)
    assert "JUPYTER_SKY_HEAD_FD" not in os.environ


@pytest.mark.parametrize(
    ("given_out", "usual"), [("20000 65535", 0), ("20002 65535", 2), ("", 3), ("1024 9999", 3)]
)
def test_systems_that_give_out_more_or_do_not_say_it(
    head: HeadPorts, given_out: str, usual: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = tmp_path / "range"
    told.write_text(given_out)
    monkeypatch.setattr(head_ports, "_EPHEMERAL", told)
    ports = [head.reserve("127.0.0.1") for _ in range(3)]
    assert len(set(ports)) == 3
    assert sum(20_000 <= port < 29_500 for port in ports) == usual


def test_an_address_that_the_node_has_no_more_is_said_to_be(head: HeadPorts) -> None:
    said = r"rank 0 cannot listen on 192.0.2.1 \(.*\): if the address of its node has changed, "
    with pytest.raises(SkyError, match=said):
        head.reserve("192.0.2.1")
    assert head.reserve("127.0.0.1")
