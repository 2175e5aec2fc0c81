"""The journal: numbered events, for a client that comes back."""

from __future__ import annotations

from pathlib import Path

from jupyter_sky.node.agent.journal import Journal
from jupyter_sky.transport.frames import PREFIX, decode_message


def read(journal: Journal, number: int) -> dict:
    return decode_message(journal.frame(number)[PREFIX.size :])


def test_recent_and_old_events_are_the_same(tmp_path: Path) -> None:
    log = b"".join(b"%04d" % i for i in range(2000))
    journal = Journal(tmp_path / "journal", lambda rank, offset, size: log[offset : offset + size])
    for i in range(2000):
        event = {"event": "output", "rank": 0, "data": log[i * 4 : i * 4 + 4]}
        journal.append(event, logged=(i * 4, 4))
    assert journal.last == 2000
    for number in (1, 2, 700, 1500, 1999, 2000):
        assert read(journal, number) == {
            "event": "output",
            "rank": 0,
            "data": b"%04d" % (number - 1),
            "n": number,
        }


def test_what_was_printed_is_not_written_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", lambda rank, offset, size: b"")
    journal.append({"event": "output", "rank": 0, "data": bytes(1_000_000)}, logged=(0, 1_000_000))
    assert (tmp_path / "journal").stat().st_size < 1000
