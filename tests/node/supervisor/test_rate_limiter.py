"""How much of a flood is shown."""

from __future__ import annotations

from jupyter_sky.node.supervisor.output.rate_limiter import (
    BURST,
    GAP,
    PROGRAM_BURST,
    RATE,
    RateLimiter,
)

TAIL = GAP * RATE


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_what_a_user_can_read_passes_as_it_is() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    for number in range(1000):
        line = b"x" * 500 + b"\n"
        shown = limiter.feed(line, number * len(line))
        assert shown
        assert (shown.data, shown.offset, shown.skipped_bytes) == (line, number * len(line), 0)
        clock.now += 0.02


def test_a_flood_ends_with_its_last_lines_and_nothing_is_unaccounted_for() -> None:
    limiter = RateLimiter(Clock())
    lines = [f"line {number}\n".encode() for number in range(1_000_000)]
    data = b"".join(lines)
    shown = []
    for start in range(0, len(data), 50_000):
        piece = limiter.feed(data[start : start + 50_000], start)
        if piece:
            shown.append(piece)
    assert limiter.is_holding
    last = limiter.release()
    assert last
    shown.append(last)
    assert sum(len(piece.data) for piece in shown) < 1.1 * BURST + TAIL
    assert sum(len(piece.data) + piece.skipped_bytes for piece in shown) == len(data)
    assert sum(piece.data.count(b"\n") + piece.skipped_lines for piece in shown) == 1_000_000
    assert last.data.startswith(b"line 9")
    assert last.data.endswith(b"line 999999\n")
    assert data[last.offset :] == last.data
    assert not limiter.is_holding


def test_the_end_of_one_endless_line_is_shown() -> None:
    last = RateLimiter(Clock()).feed(b"y" * (50 * BURST), 0)
    assert last
    assert last.data == b"y" * int(TAIL)
    assert last.skipped_lines == 0


def test_what_is_held_back_may_be_shown_after_a_while() -> None:
    clock = Clock()
    limiter = RateLimiter(clock)
    limiter.feed(b"z" * BURST, 0)
    assert limiter.feed(b"more\n", BURST) is None
    assert limiter.delay == TAIL / RATE
    clock.now += limiter.delay
    assert limiter.delay == 0
    shown = limiter.release()
    assert shown
    assert shown.data == b"more\n"
    assert shown.skipped_bytes == 0


def test_a_flood_into_a_file_has_few_gaps() -> None:
    clock = Clock()
    limiter = RateLimiter(clock, for_program=True)
    limiter.feed(b"z" * PROGRAM_BURST, 0)
    waits = []
    for _ in range(4):
        assert limiter.feed(b"x" * 2**20, None) is None
        waits.append(limiter.delay)
        clock.now += waits[-1]
        assert limiter.release()
    assert waits == [GAP] * 4
