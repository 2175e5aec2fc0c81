"""Parts of a rank's log, as they are shown."""

from __future__ import annotations

from jupyter_sky.cluster.rank_log import LogEntry, LogPart


def test_nothing_is_older_than_what_precedes_it() -> None:
    """The clock of the node was set back."""
    pieces = [(0, 7.0, "stdout"), (4, 3.0, "stderr"), (8, 9.0, "stdout")]
    part = LogPart(0, b"one\ntwo\nsix\n", 0, 12, pieces, [(8, 4.0, "b", "cell")])
    assert [entry.time for entry in part.entries()] == [7.0, 7.0, 7.0, 9.0]


def test_what_a_log_has_not_kept_is_said_where_it_stood() -> None:
    part = LogPart(0, b"the end\n", 5000, 5008, [(4990, 7.0, "stderr")], [], dropped=4000)
    note, shown = part.entries()
    assert (note.stream, note.time) == ("log", 7.0)
    assert note.data == part.note
    assert b"4.00 kB are missing here" in note.data or b"4 kB are missing here" in note.data
    assert shown == LogEntry(0, 7.0, b"the end\n", "stderr")
    whole = LogPart(0, b"all\n", 0, 4, [(0, 7.0, "stdout")], [])
    assert whole.note == b""
    assert len(list(whole.entries())) == 1
