"""A group that will not be complete lets its ranks go, wherever the missing one was killed."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import threading
from datetime import timedelta

from jupyter_sky.node.rank.group import collective_abort
from tests.paths import ROOT
from tests.waiting import until

RANKS = 4
ROUNDS = 3  # which ranks wait for the killed one to connect, and which connect, is chance


def test_ranks_are_released_that_wait_for_one_which_told_its_address_and_was_killed() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.node.rank.group.test_collective_abort"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=400,
    )
    assert done.stdout.split() == ["released"] * (RANKS - 1) * ROUNDS, done.stderr


_PEER = """
import socket, sys, time
sock = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
for line in sys.stdin:
    try:
        sock.sendall(b"x" * 1000)
        print("sent", flush=True)
    except OSError as error:
        print(type(error).__name__, flush=True)
"""


def test_peers_may_send_to_a_rank_whose_collective_was_broken() -> None:
    # gloo never lets a peer go whose write is refused, so none may be.
    import torch.distributed  # noqa: F401 - nothing is broken where it is not used

    with socket.create_server(("127.0.0.1", 0)) as listener, contextlib.ExitStack() as left:
        peer = subprocess.Popen(
            [sys.executable, "-c", _PEER, str(listener.getsockname()[1])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        left.enter_context(peer)
        left.callback(peer.kill)
        ours, _ = listener.accept()

        def send() -> str:
            assert peer.stdin and peer.stdout
            peer.stdin.write("\n")
            peer.stdin.flush()
            return peer.stdout.readline().strip()

        assert send() == "sent"
        assert collective_abort.break_group([peer.pid], [], store=("127.0.0.1", 1))
        assert ours.recv(2_000) == b"x" * 1_000
        assert ours.recv(2_000) == b""  # which lets gloo close it
        ours.close()
        assert [send() for _ in range(3)] == ["sent"] * 3
        collective_abort.close_broken()
        until(lambda: send() != "sent")


def main() -> None:
    """Form groups of forked processes, the last of which is killed in the middle of it."""
    import torch.distributed  # noqa: F401 - once, for all of them

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    for _ in range(ROUNDS):
        _form()


def _form() -> None:
    # Not here: with the threads of a store, this process could not be forked safely.
    ports, ends = os.pipe(), os.pipe()
    head = os.fork()
    if not head:
        os._exit(_be_head(ports[1], ends[0]))
    port = int(os.read(ports[0], 10))
    pids = []
    for rank in range(RANKS):
        pid = os.fork()
        if not pid:
            os._exit(_be_rank(rank, port))
        pids.append(pid)
    os.waitpid(pids[-1], 0)
    os.write(ends[1], " ".join(map(str, pids)).encode())
    for pid in pids[:-1]:
        os.waitpid(pid, 0)
    os.kill(head, signal.SIGKILL)
    os.waitpid(head, 0)


def _be_head(port: int, end: int) -> int:
    """Have the store where ranks meet, and tell them there when one was killed."""
    import torch.distributed as dist

    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(port, str(store.port).encode())
    store.set("killed", os.read(end, 1000))
    signal.pause()
    return 0


def _be_rank(rank: int, port: int) -> int:
    import torch.distributed as dist

    from jupyter_sky.node.rank.group import collective_abort

    store = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)

    class KilledAfterItsAddress(dist.Store):
        """Tells the others the address of this rank, and is killed before it connects."""

        def set(self, key: str, value: bytes) -> None:
            store.set(key, value)
            os.kill(os.getpid(), signal.SIGKILL)

    is_released = threading.Event()
    before = collective_abort.listening_sockets()

    def release() -> None:
        another = dist.TCPStore("127.0.0.1", port, is_master=False, wait_for_workers=False)
        siblings = [int(pid) for pid in another.get("killed").split() if int(pid) != os.getpid()]
        while not is_released.wait(0.2):
            collective_abort.break_group(siblings, [], ("127.0.0.1", port))
            collective_abort.release_waiting_pairs(before, RANKS - 1)

    last = rank == RANKS - 1
    if not last:
        threading.Thread(target=release, daemon=True).start()
    # It can also come to its end with broken connections: the interrupt that follows ends it then.
    with contextlib.suppress(RuntimeError):
        dist.init_process_group(
            "gloo",
            store=KilledAfterItsAddress() if last else store,
            rank=rank,
            world_size=RANKS,
            timeout=timedelta(seconds=900),
        )
    is_released.set()
    os.write(1, b"released\n")
    return 0


if __name__ == "__main__":
    main()
