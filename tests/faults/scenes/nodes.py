"""A node in other hands, which sends what it should not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from jupyter_sky.providers.local import Local
from jupyter_sky.transport.frames import encode
from tests.cluster.conftest import Cells, start
from tests.cluster.taken_over import TakenOver, taken_over
from tests.faults.experience import Experience
from tests.faults.parts import attach
from tests.faults.scenes.scene import Scene, feel_during

Strike = Callable[[Cells, TakenOver], None]


def _forge(cells: Cells, node: TakenOver) -> None:
    [run] = cells.cluster._scheduler._runs
    done = {"event": "rank_done", "rank": 0, "run": run, "outcome": "ok", "values": None}
    node.say(done)


def _send_huge(cells: Cells, node: TakenOver) -> None:
    node.say_raw(encode({"piece": 1, "offset": 0}, 1 << 50))


def _send_nonsense(cells: Cells, node: TakenOver) -> None:
    node.say_raw(b"GET / HTTP/1.1\r\n\r\n" * 4)


def _garble(cells: Cells, node: TakenOver) -> None:
    def lie(message: dict[str, Any]) -> dict[str, Any]:
        return {**message, "outcome": 5} if message.get("event") == "rank_done" else message

    node.change = lie
    # Its rank comes to the end of the run, and nobody can make out that it has.
    cells.cluster.interrupt()


def _sent(strike: Strike) -> Callable[[], Experience]:
    """Have one of two nodes send something while a cell runs; the user stops that when told."""

    def play() -> Experience:
        before = start(2, framework=False, provider=Local(machines=2))
        name = before.cluster.name
        with taken_over(before.cluster, 1) as node:
            before.cluster.close()
            cells = attach(name)

            def mend() -> None:
                node.change = lambda message: message

            felt = feel_during(cells, lambda: strike(cells, node), mend)
            assert cells.ask("1 + 1") == [2, 2]
            cells.cluster.down()
        return felt

    return play


SCENES = (
    Scene(
        "a forged event from a node",
        _sent(_forge),
        "node 1 spoke for rank 0, which it does not have: that was dropped",
    ),
    Scene("a huge frame from a node", _sent(_send_huge), r"node 1 sent what cannot be read \("),
    Scene(
        "bytes that are no frame, from a node",
        _sent(_send_nonsense),
        r"node 1 sent what cannot be read \(a message of \d+ bytes is too large\)",
    ),
    Scene(
        "a malformed end of a run from a node",
        _sent(_garble),
        r"node 1 sent what cannot be read \(the outcome of rank_done is malformed\)",
    ),
)
