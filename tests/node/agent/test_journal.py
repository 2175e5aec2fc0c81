"""The journal: numbered events, for a client that comes back."""

from __future__ import annotations

import gc
import resource
import tracemalloc
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jupyter_sky.cluster.network import incoming
from jupyter_sky.node.agent.events import journal as journal_module
from jupyter_sky.node.agent.events import spool as spool_module
from jupyter_sky.node.agent.events.cursor import Cursor
from jupyter_sky.node.agent.events.journal import Journal
from jupyter_sky.node.agent.events.spool import Spool
from jupyter_sky.transport.frames import PREFIX, Decoder, decode_message

MODULES = (journal_module, spool_module)


def frames(journal: Journal, number: int = 1) -> Iterator[bytes]:
    """Yield what a client is sent that has all before an event."""
    cursor = Cursor(journal, number)
    while not cursor.is_at_end:
        if frame := cursor.read():
            yield frame


def read(journal: Journal, number: int) -> dict:
    return decode_message(next(frames(journal, number))[PREFIX.size :])


def read_all(journal: Journal) -> Iterator[dict]:
    """Yield what a client gets that has nothing yet."""
    for frame in frames(journal):
        yield decode_message(frame[PREFIX.size :])


def display(n: int, size: int = 1000) -> dict:
    return {"event": "display", "rank": 0, "data": {"image/png": n.to_bytes(2, "big") * size}}


def done(n: int) -> dict:
    return {"event": "rank_done", "rank": 0, "run": str(n)}


def no_log(rank: int, offset: int, size: int) -> bytes:
    return b""


@contextmanager
def full_disk(path: Path, room: int = 0) -> Iterator[None]:
    """Let files grow little further than one has; writes are cut short there, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_recent_and_old_events_are_the_same(tmp_path: Path) -> None:
    log = b"".join(b"%04d" % i for i in range(2000))
    journal = Journal(tmp_path, lambda rank, offset, size: log[offset : offset + size])
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


@given(
    changes=st.lists(
        st.tuples(
            st.sampled_from(["journal", "journal.shown", "journal.places", "journal.shown.places"]),
            st.integers(0, 3000),
            st.binary(min_size=1, max_size=9),
        ),
        max_size=6,
    )
)
@settings(max_examples=30, deadline=None)
def test_what_was_damaged_on_the_disk_counts_as_lost(
    changes: list[tuple[str, int, bytes]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    journal = Journal(folder, lambda rank, offset, size: b"x" * size)
    for n in range(20):
        journal.append(done(n))
        journal.append({"event": "output", "rank": 0, "data": b"xx"}, logged=(n, 2))
    journal._recent.clear()  # what happened since has taken their place in memory
    for name, at, new in changes:
        with (folder / name).open("r+b") as file:
            file.seek(at % (folder / name).stat().st_size)
            file.write(new)
    decoder, last = Decoder(), 0
    for frame in frames(journal):
        decoder.buffer()[: len(frame)] = frame
        [(message, payload)] = decoder.received(len(frame))
        assert len(payload) == 0
        last = incoming.next_number(message, last)
    assert last == journal.last


def test_nothing_stays_in_memory_of_an_event(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log)

    def append(count: int) -> int:
        for n in range(count):
            journal.append(done(n))
        gc.collect()
        # Other threads of these tests may have made something meanwhile.
        own = [tracemalloc.Filter(True, each.__file__, all_frames=True) for each in MODULES]
        found = tracemalloc.take_snapshot().filter_traces(own)
        return sum(each.size for each in found.traces)

    tracemalloc.start(5)
    try:
        before = append(1000)  # as many as are kept whole in memory, and more
        assert append(8000) - before < 2000
    finally:
        tracemalloc.stop()
    assert [each["run"] for each in read_all(journal)] == list(
        map(str, [*range(1000), *range(8000)])
    )


def test_of_very_many_records_the_last_have_a_place(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "spool", limit=100_000, most=100)
    for number in range(2, 502, 2):
        assert spool.append(number, b"%d" % number)
    assert [spool.read(number) for number in (2, 300, 301, 302, 401, 500, 502)] == [
        None,
        None,
        None,
        b"302",
        None,
        b"500",
        None,
    ]
    found = [spool.following(number) for number in (500, 1, 303, 304, 305, 501)]
    assert found == [500, 302, 304, 304, 306, None]
    assert (spool.dropped, spool.dropped_to) == (150, 300)


def test_output_never_takes_the_place_of_what_happens_to_ranks(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log, most=5000)
    for n in range(20):
        journal.append(done(n))
        for _ in range(1000):
            journal.append(display(n, size=10))
    seen = list(read_all(journal))
    counts = Counter(each["event"] for each in seen)
    lost = [each for each in seen if each["event"] == "lost"]
    assert (counts["rank_done"], sum(each["others"] for each in lost)) == (20, 0)
    assert counts["display"] >= 5000
    assert counts["display"] + sum(each["shown"] for each in lost) == 20_000
    assert seen[-1]["n"] == journal.last


def test_what_was_printed_is_not_written_twice(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log)
    journal.append({"event": "output", "rank": 0, "data": bytes(1_000_000)}, logged=(0, 1_000_000))
    assert sum(each.stat().st_size for each in tmp_path.iterdir()) < 1000


def test_on_a_full_disk_each_event_is_whole_or_marked_as_lost(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log)
    for n in range(100):
        journal.append(display(n))
    with full_disk(tmp_path / "journal.shown", room=700):
        for n in range(100, 1000):
            journal.append(display(n))
            journal.append(done(n))
    for n in range(1000, 2000):
        journal.append(display(n))
    seen = list(read_all(journal))
    kept = [each["data"] for each in seen if each["event"] == "display"]
    for n in [*range(100), *range(1000, 2000)]:
        assert display(n)["data"] in kept
    assert [each["run"] for each in seen if each["event"] == "rank_done"] == [
        str(n) for n in range(100, 1000)
    ]
    lost = [each for each in seen if each["event"] == "lost"]
    assert len(kept) + sum(each["shown"] for each in lost) == 2000
    assert sum(each["others"] for each in lost) == 0
    assert seen[-1]["n"] == journal.last


def test_what_happens_to_ranks_is_known_when_nothing_can_be_written(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log, state_limit=20_000)
    with full_disk(tmp_path / "journal"):
        for n in range(2000):
            journal.append(done(n))
    seen = list(read_all(journal))
    assert seen[0] == {"event": "lost", "shown": 0, "others": seen[0]["n"], "n": seen[0]["n"]}
    assert [each["run"] for each in seen[1:]] == [str(n) for n in range(seen[0]["n"], 2000)]
    assert 500 < len(seen) < 2000


def test_the_files_have_a_limit_and_the_newest_events_are_kept(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log, shown_limit=1_000_000, state_limit=50_000)
    for n in range(5000):
        journal.append(display(n))
        journal.append(done(n))
    assert (tmp_path / "journal.shown").stat().st_size <= 1_000_000
    assert (tmp_path / "journal").stat().st_size <= 50_000
    seen = list(read_all(journal))
    for kind, made in (("display", display), ("rank_done", done)):
        kept = [{**each, "n": 0} for each in seen if each["event"] == kind]
        assert 400 < len(kept) < 1500
        assert kept == [{**made(n), "n": 0} for n in range(5000 - len(kept), 5000)]
    assert sum(each["shown"] + each["others"] for each in seen if each["event"] == "lost") == (
        10_000 - sum(each["event"] != "lost" for each in seen)
    )


def test_an_event_larger_than_the_limit_is_lost_alone(tmp_path: Path) -> None:
    journal = Journal(tmp_path, no_log, shown_limit=100_000)
    journal.append(display(1, size=60_000))
    for n in range(2, 600):
        journal.append(done(n))
    first, *rest = read_all(journal)
    assert first == {"event": "lost", "shown": 1, "others": 0, "n": 1}
    assert len(rest) == 598


@pytest.mark.parametrize("log", [b"", b"too short"])
def test_output_that_the_log_does_not_have_any_more_is_lost(tmp_path: Path, log: bytes) -> None:
    journal = Journal(tmp_path, lambda rank, offset, size: log[offset : offset + size])
    journal.append({"event": "output", "rank": 0, "data": bytes(1000)}, logged=(0, 1000))
    for n in range(600):
        journal.append(done(n))
    assert read(journal, 1)["event"] == "lost"
