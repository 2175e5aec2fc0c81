"""Checks that TCP passes between machines, on any port and with packets of any size.

Process groups of torch and other frameworks listen on arbitrary free ports. So, before ranks
connect, each node listens on such a port and the others connect to it as a test: a rank that is
blocked by a firewall would wait for minutes, without saying for which peer.

Agents import this file. ``%sky doctor`` uses it on hosts without an agent, as the standard input of
whatever Python they have, 3.7 or later: ``python3 - listen PEER CALLERS INTERFACE`` and ``python3 -
connect NAME=ADDRESS:PORT…``.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import struct
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

K = TypeVar("K")

CONNECT_WITHIN = 5.0
"""Seconds for a connection: time for what is lost once or twice to be sent again."""

_ANSWER_WITHIN = 10.0
_OPEN_FOR = 30.0
_SIOCGIFADDR = 0x8915
_SIZE = 64 * 1024  # bytes: more than one packet on any network


def listen_on_test_port(address: str, callers: int) -> int:
    """Listen on a free port for a test, and return the port.

    Parameters
    ----------
    address
        The address to listen on.
    callers
        The number of connections to expect; after these, or after half a minute, the port is
        closed.
    """
    server = _listen(address, callers)
    threading.Thread(target=_serve, args=(server, callers), daemon=True).start()
    return int(server.getsockname()[1])


def connect_to_test_ports(listeners: Mapping[K, tuple[str, int]]) -> dict[K, str]:
    """Connect to the test ports of other machines, all at once.

    Parameters
    ----------
    listeners
        Address and port of each, by any name.

    Returns
    -------
    dict
        Error messages, by the names of those that cannot be reached.
    """
    with ThreadPoolExecutor(max(1, len(listeners))) as threads:
        attempts = {name: threads.submit(_connect, where) for name, where in listeners.items()}
    return {name: each.result() for name, each in attempts.items() if each.result()}


def _listen(address: str, callers: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    server = socket.socket(family, socket.SOCK_STREAM)
    server.bind((address, 0))
    server.listen(callers)
    return server


def _serve(server: socket.socket, callers: int) -> None:
    until = time.monotonic() + _OPEN_FOR
    answering = []
    with server:
        while callers > 0 and time.monotonic() < until:
            server.settimeout(max(0.1, until - time.monotonic()))
            try:
                caller, _ = server.accept()
            except OSError:
                continue
            callers -= 1
            answering.append(threading.Thread(target=_answer, args=(caller,), daemon=True))
            answering[-1].start()
    for thread in answering:
        thread.join()


def _answer(caller: socket.socket) -> None:
    with caller:
        caller.settimeout(_ANSWER_WITHIN)
        with contextlib.suppress(OSError):
            if _receive(caller) == _SIZE:
                caller.sendall(bytes(_SIZE))


def _connect(where: tuple[str, int]) -> str:
    """Return why a test port cannot be reached; empty if it can."""
    try:
        sock = socket.create_connection(where, CONNECT_WITHIN)
    except TimeoutError:
        return "no answer, as when a firewall drops what comes"
    except OSError as error:
        return (error.strerror or str(error)).lower()
    with sock:
        sock.settimeout(_ANSWER_WITHIN)
        with contextlib.suppress(OSError):
            sock.sendall(bytes(_SIZE))
            if _receive(sock) == _SIZE:
                return ""
    return "small packets pass and large ones do not: does one have another MTU?"


def _receive(sock: socket.socket) -> int:
    count = 0
    while count < _SIZE:
        data = sock.recv(_SIZE)
        if not data:
            break
        count += len(data)
    return count


# As a program of its own


def _main(command: str, *words: str) -> None:
    if command == "connect":
        listeners = dict(_listener(word) for word in words)
        print(json.dumps(connect_to_test_ports(listeners)))
        return
    peer, callers, interface = words
    address, interface = _local_address(peer, interface)
    server = _listen(address, int(callers))
    where = {"address": address, "interface": interface, "port": server.getsockname()[1]}
    print(json.dumps(where), flush=True)
    # The caller waits until this process ends, so a child goes on listening.
    if os.fork() == 0:
        os.setsid()
        nowhere = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(nowhere, stream)
        _serve(server, int(callers))


def _listener(word: str) -> tuple[str, tuple[str, int]]:
    name, _, where = word.rpartition("=")
    address, _, port = where.rpartition(":")
    return name, (address.strip("[]"), int(port))


def _local_address(peer: str, interface: str) -> tuple[str, str]:
    """Return the address and interface that lead to a peer, or those of a chosen interface.

    Like ``node.network.interfaces``, which needs more than the standard library.
    """
    if not interface:
        family = socket.AF_INET6 if ":" in peer else socket.AF_INET
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect((peer, 9))
            address = sock.getsockname()[0]
        names = [name for name, each in _addresses() if each == address]
        return address, names[0] if names else "an interface"
    for name, address in _addresses():
        if name == interface:
            return address, name
    raise SystemExit(f"there is no interface {interface} with an address")


def _addresses() -> Iterator[tuple[str, str]]:
    """Yield the interfaces with their addresses."""
    for _, name in socket.if_nameindex():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            request = struct.pack("256s", name.encode())
            with contextlib.suppress(OSError):  # the interface may have no IPv4 address
                yield name, socket.inet_ntoa(fcntl.ioctl(sock, _SIOCGIFADDR, request)[20:24])
    # The system may have no IPv6.
    with contextlib.suppress(OSError), open("/proc/net/if_inet6") as file:  # noqa: PTH123
        for line in file:
            number, *_, name = line.split()
            yield name, socket.inet_ntop(socket.AF_INET6, bytes.fromhex(number))


if __name__ == "__main__":
    _main(*sys.argv[1:])
