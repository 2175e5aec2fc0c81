"""How many displays of a flood are shown."""

from __future__ import annotations

from typing import Any

from jupyter_sky.node.supervisor.output.display_limiter import BURST, EACH, KEPT, DisplayLimiter
from tests.node.supervisor.test_rate_limiter import Clock


def display(n: int, kind: str = "display", identity: str = "", size: int = 0) -> dict[str, Any]:
    data = {"text/plain": f"{n}", "image/png": bytes(size)}
    transient = {"display_id": identity} if identity else {}
    return {"event": "display", "kind": kind, "data": data, "transient": transient}


def numbers(messages: list[dict[str, Any]]) -> list[int]:
    return [int(each["data"]["text/plain"]) for each in messages]


def flooded(clock: Clock | None = None) -> DisplayLimiter:
    """Return one through which as much has passed as may."""
    limiter = DisplayLimiter(clock or Clock())
    while limiter.feed(display(0, size=1_000_000)):
        pass
    limiter.release()
    return limiter


def test_what_a_notebook_can_hold_passes_as_it_is() -> None:
    limiter = DisplayLimiter(Clock())
    for n in range(900):
        [shown] = limiter.feed(display(n))
        assert shown == display(n)


def test_a_flood_ends_with_the_last_ones_and_says_how_many_were_left_out() -> None:
    limiter = DisplayLimiter(Clock())
    shown = [each for n in range(10_000) for each in limiter.feed(display(n))]
    last = limiter.release()
    assert numbers(last) == list(range(10_000 - KEPT, 10_000))
    assert len(shown) <= BURST / EACH + 1
    assert last[0]["skipped"] == 10_000 - KEPT - len(shown)
    assert not limiter.is_holding


def test_a_large_one_passes_and_the_next_has_to_wait() -> None:
    clock = Clock()
    limiter = DisplayLimiter(clock)
    for n in range(2):
        assert numbers(limiter.feed(display(n, size=BURST * 2 // 3))) == [n]
    assert limiter.feed(display(2)) == []
    clock.now += limiter.delay
    assert numbers(limiter.release()) == [2]


def test_of_what_is_updated_the_last_state_is_shown() -> None:
    limiter = flooded()
    for n in range(100):
        assert limiter.feed(display(n, "update", "bar")) == []
    [last] = limiter.release()
    assert (last["data"]["text/plain"], last["kind"]) == ("99", "update")
    assert "skipped" not in last


def test_an_update_of_what_nobody_has_seen_is_shown_as_what_it_updates() -> None:
    limiter = flooded()
    limiter.feed(display(1, "display", "bar"))
    limiter.feed(display(2, "update", "bar"))
    [last] = limiter.release()
    assert (last["data"]["text/plain"], last["kind"]) == ("2", "display")


def test_what_is_cleared_was_not_left_out() -> None:
    limiter = flooded()
    clear = {"kind": "clear", "data": {"wait": True}, "transient": {}}
    for n in range(100):
        assert limiter.feed(clear) == [clear], "what is printed next is not to be cleared"
        assert limiter.feed(display(n)) == []
    assert limiter.release() == [display(99)]


def test_what_clears_is_never_held_back() -> None:
    limiter = DisplayLimiter(Clock())
    clear = {"kind": "clear", "data": {"wait": True}, "transient": {}}
    for _ in range(10_000):
        assert limiter.feed(clear) == [clear]
    assert limiter.feed(display(1)) == [display(1)]
