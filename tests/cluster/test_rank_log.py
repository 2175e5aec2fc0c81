"""Parts of a rank's log, as they are shown."""

from __future__ import annotations

from jupyter_sky.cluster.rank_log import LogEntry, LogPart


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
