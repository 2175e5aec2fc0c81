"""What ranks record of a run: torch's profiler and memory, put together here."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.profiling.profile import percent
from jupyter_sky.cluster.profiling.records import Fetched, _unpacked
from jupyter_sky.cluster.profiling.trace import Trace, trace
from jupyter_sky.cluster.runs.handle import RunHandle
from jupyter_sky.cluster.runs.task import Task
from jupyter_sky.node.rank.profiling.torch_record import TorchEvent, record_of
from jupyter_sky.notebook.profiling.memory import memory_text
from jupyter_sky.notebook.profiling.timeline import as_html, as_text
from jupyter_sky.transport.protocol.profiling import TorchRecord, TraceEvent
from tests.cluster.conftest import Cells
from tests.cluster.runs.test_stop import stop_at_first_line


def _recorded(
    cells: Cells, code: str, ranks: tuple[int, ...] | None = None
) -> tuple[RunHandle, Fetched]:
    task = Task(ranks or cells.cluster.all_ranks, code=code, records=("torch", "memory"))
    run = cells.cluster.run(task)
    run.follow()
    return run, cells.cluster.profiler.recorded(run.id, "torch", task.ranks)


def test_torchs_profiler_shows_who_waits_and_one_file_has_all_ranks(
    cells: Cells, tmp_path: Path
) -> None:
    code = f"""from pathlib import Path
dist.barrier()
a = torch.ones(50, 50)
for step in range(2):
    a = a @ a / 50
    if rank != 2:
        Path({str(tmp_path)!r}, f"{{step}}.{{rank}}").touch()
    else:
        while len([*Path({str(tmp_path)!r}).glob(f"{{step}}.*")]) < 3:
            time.sleep(0.01)  # until the others come to wait, however slow the machine is
        time.sleep(0.5)
    dist.all_reduce(a)"""
    run, fetched = _recorded(cells, code)
    run.values()
    found = trace(fetched)
    assert not found.missing
    rows = {row.name: row for row in found.operations(40)}
    assert rows["aten::mm"].calls == 8
    assert rows["gloo:all_reduce"].calls == 8
    waited = rows["gloo:all_reduce"].seconds
    assert all(waited[rank] > max(0.9, waited[2]) for rank in (0, 1, 3))
    found.write(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert {event["args"]["name"] for event in events if event["name"] == "process_name"} == {
        f"rank {rank}" for rank in range(4)
    }
    follows_the_format(tmp_path / "trace.json")
    length = (found.span[1] - found.span[0]) / 1000
    timed = [event for event in events if event["ph"] == "X"]
    assert {event["pid"] for event in timed if event["name"] == "aten::mm"} == {0, 1, 2, 3}
    assert all(event["ts"] < length + 2e6 for event in timed)
    html = as_html(found, "train", "trace.json has it")
    ElementTree.fromstring(html)
    assert "communication" in html
    assert "gloo:all_reduce" in as_text(found, "train", "trace.json has it")


def follows_the_format(file: Path) -> None:
    """Hold a file against what Chrome's "Trace Event Format" asks for, as Perfetto reads it."""
    document = json.loads(file.read_text())
    assert set(document) == {"displayTimeUnit", "traceEvents"}
    assert document["displayTimeUnit"] in ("ms", "ns")
    named: dict[str, set[tuple[int, int]]] = {"process_name": set(), "thread_name": set()}
    rows: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for event in document["traceEvents"]:
        where = event["pid"], event["tid"]
        assert all(type(each) is int and each >= 0 for each in where)
        assert isinstance(event["name"], str)
        if event["ph"] == "M":
            [(key, value)] = event["args"].items()
            kinds = {"process_name": str, "thread_name": str, "process_sort_index": int}
            assert type(value) is kinds[event["name"]]
            assert key == event["name"].partition("_")[2]
            named.get(event["name"], set()).add(where)
            continue
        assert set(event) == {"ph", "name", "cat", "pid", "tid", "ts", "dur"}
        assert event["ph"] == "X"
        assert event["ts"] >= 0
        assert event["dur"] >= 0
        # Perfetto counts in nanoseconds.
        start = round(1000 * event["ts"])
        rows.setdefault(where, []).append((start, start + round(1000 * event["dur"])))
    assert {pid for pid, _ in rows} <= {pid for pid, _ in named["process_name"]}
    assert set(rows) == named["thread_name"]
    for spans in rows.values():
        assert spans == sorted(spans, key=lambda span: (span[0], -span[1]))
        open_until: list[int] = []
        for start, end in spans:
            while open_until and open_until[-1] <= start:
                open_until.pop()
            assert not open_until or end <= open_until[-1], "half over another in its row"
            open_until.append(end)


def test_what_overlaps_by_half_has_a_row_of_its_own(tmp_path: Path) -> None:
    def event(name: str, start: int, duration: int, thread: str = "thread 7") -> TraceEvent:
        return {
            "name": name, "cat": "compute", "thread": thread, "start": start, "duration": duration
        }  # fmt: skip

    def record(events: list[TraceEvent]) -> TorchRecord:
        return {
            "trouble": "", "start": 1000, "end": 9000, "stopped": 9000, "has_device": False,
            "found": len(events), "events": events, "operations": [], "bins": [],
        }  # fmt: skip

    events = [
        event("outer", 2000, 1000),
        event("inner", 2000, 400),
        event("begun before all", 500, 600, '<b> "thread" 8'),
        event("async", 2500, 1500),
        event("async too", 2600, 2000),
        event("after", 3000, 0),
    ]
    found = Trace({0: record(events), 1: record([]), 2: record(events[:1])}, {0: 0, 1: 5, 2: 9}, {})
    found.write(tmp_path / "trace.json")
    follows_the_format(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    rows = {each["tid"]: each["args"]["name"] for each in written
            if each["name"] == "thread_name" and each["pid"] == 0}  # fmt: skip
    assert {each["name"]: rows[each["tid"]] for each in written
            if each["ph"] == "X" and each["pid"] == 0} == {
        "begun before all": '<b> "thread" 8', "outer": "thread 7", "inner": "thread 7",
        "async": "thread 7 (2)", "async too": "thread 7 (3)", "after": "thread 7",
    }  # fmt: skip
    assert {each["name"]: each["ts"] for each in written if each["ph"] == "X"}["outer"] == 1.491


def test_kernels_are_shown_however_long_the_processor_takes_to_hand_them_over() -> None:
    def on_processor(number: int) -> TorchEvent:
        start = number * 1_000_000
        return TorchEvent(start, start + 900_000, f"aten::op{number}", 7, None, False)

    kernel = TorchEvent(500, 30_500, "void at::native::add_kernel", 20, 0, False)
    events = sorted([*map(on_processor, range(60)), kernel])
    record = record_of(events, len(events), 0, 60_000_000, 60_000_000)
    found = Trace({0: record}, {0: 0}, {})
    assert [row.name for row in found.operations()] == ["void at::native::add_kernel"]
    text = as_text(found, "train", "trace.json has it")
    assert "rank 0: 100 % GPU idle." in text
    assert "aten::op" not in text


def test_without_operations_there_is_no_table() -> None:
    found = Trace({0: record_of([], 0, 0, 10**8, 10**8)}, {0: 0}, {})
    for text in (
        as_text(found, "train", "trace.json has it"),
        as_html(found, "train", "trace.json has it"),
    ):
        assert "rank 0: 100 % no operation of torch" in text
        assert "operations that took" not in text


@pytest.mark.parametrize("others", ["time.sleep(600)", "dist.barrier()"])
def test_stop_and_an_error_keep_what_was_recorded(cells: Cells, others: str) -> None:
    code = f"""a = torch.ones(50, 50) @ torch.ones(50, 50)
if rank == 3:
    raise ValueError("enough")
{others}"""
    run, fetched = _recorded(cells, code)
    assert run.finished
    assert not fetched.missing
    assert {"aten::mm"} <= {row.name for row in trace(fetched).operations(40)}
    assert {each["trouble"] for each in fetched.by_rank.values()} == {""}
    run, fetched = _recorded(cells, "torch.ones(3).sum()")
    run.values()
    assert {each["trouble"] for each in fetched.by_rank.values()} == {""}


def test_variables_are_kept_however_long_a_recording_takes_to_read(
    new: Callable[..., Cells],
) -> None:
    cells = new(nodes=2, stop=2.0)
    cells.run("""import time, torch, torch.distributed as dist
from jupyter_sky.node.rank.profiling import torch_profiler
rank, trained, usual = dist.get_rank(), 123, torch_profiler._Recorder.stop
def stop(recorder):
    time.sleep(4)  # what a million events take on a machine with much to do
    usual(recorder)
if rank == 0:
    torch_profiler._Recorder.stop = stop""")
    loop = "while True:\n    torch.ones(100) @ torch.ones(100)"
    run, fetched = _recorded(cells, f"if rank == 1:\n    raise ValueError('enough')\n{loop}")
    with pytest.raises(ValueError, match="enough"):
        run.values()
    assert {rank: each["trouble"] for rank, each in fetched.by_rank.items()} == {0: "", 1: ""}
    stopped = cells.cluster.run(
        Task(cells.cluster.all_ranks, code=f"print('here')\n{loop}", show=(0,), records=("torch",))
    )
    said = str(stop_at_first_line(stopped))
    assert "did not react yet (or what was recorded is still being read): a rank that has" in said
    assert cells.ask("trained") == [123, 123]


def test_a_collective_that_goes_on_is_not_cut_short(cells: Cells) -> None:
    # torch would write its end into memory that it has freed, and the rank would crash some time.
    begin = "work = dist.all_reduce(torch.ones(1), async_op=True)"
    run, fetched = _recorded(cells, begin, (0,))
    run.values()
    assert "had begun and not ended" in fetched.by_rank[0]["trouble"]
    _, fetched = _recorded(cells, "torch.ones(3).sum()", (0,))
    assert fetched.by_rank[0]["trouble"] == (
        "a collective of an earlier cell had begun and not ended: wait for it there"
    )
    cells.run(
        """from jupyter_sky.node.rank.profiling.torch_profiler import _allocated
a, before = torch.ones(4), _allocated()
for _ in range(50_000):
    a.mul_(1)
grown = _allocated() - before""",
        ranks=[0],
    )
    assert cells.ask("grown", ranks=[0])[0] < 10e6  # of 50 MB that a profile would have
    cells.run("work.wait() if rank == 0 else dist.all_reduce(torch.ones(1))")
    _, fetched = _recorded(cells, f"if rank == 0:\n    {begin}")
    assert "had begun and not ended" in fetched.by_rank[0]["trouble"]
    assert [fetched.by_rank[rank]["trouble"] for rank in (1, 2, 3)] == [""] * 3
    cells.run("dist.barrier()")  # of a new group: in the former one, this would never end
    run, fetched = _recorded(cells, "torch.ones(3).sum()")
    run.values()
    assert {each["trouble"] for each in fetched.by_rank.values()} == {""}


def test_a_cell_with_a_profiler_of_its_own_is_told(cells: Cells) -> None:
    cells.run("from torch.autograd import profiler")  # which `torch.profiler` is made of
    _, fetched = _recorded(cells, "with profiler.profile():\n    torch.ones(3)")
    assert {each["trouble"] for each in fetched.by_rank.values()} == {
        "the code uses torch's profiler itself, which ended that of `--profile`: leave one of them "
        "out"
    }
    cells.run("own = profiler.profile().__enter__()\nseen = torch.ones(3)")
    _, fetched = _recorded(cells, "torch.ones(3)")
    assert "is on since an earlier cell: end it" in fetched.by_rank[0]["trouble"]
    cells.run("own.__exit__(None, None, None)")
    found = cells.ask("[each.key for each in own.key_averages()]")
    assert all("aten::ones" in each for each in found)


def test_a_loop_of_tiny_operations_is_recorded_for_a_moment(cells: Cells) -> None:
    code = """a = torch.ones(4)
end = time.time() + 3
while rank == 3 and time.time() < end:
    a.mul_(1)"""
    run, fetched = _recorded(cells, code)
    run.values()
    assert re.fullmatch(r"the first [\d.]+ m?s of 3\.\d s were recorded;.*", trace(fetched).cut)


def test_it_records_the_beginning_of_a_long_cell_and_says_so(cells: Cells) -> None:
    code = """from jupyter_sky.node.rank.profiling import torch_profiler
usual, torch_profiler.RECORDED_SECONDS = torch_profiler.RECORDED_SECONDS, 0.3
torch.ones(3).sum()
end = torch_profiler.begin()
torch_profiler.RECORDED_SECONDS = usual
import threading
while any(each.name == "sky-profiler" for each in threading.enumerate()):
    time.sleep(0.01)
time.sleep(0.2)
record = end()"""
    cells.run(code, ranks=[0])
    [record] = cells.ask("record", ranks=[0])
    assert record["trouble"] == ""
    assert record["stopped"] < record["end"]
    found = Trace({0: record}, {0: 0}, {})
    assert re.fullmatch(r"the first [\d.]+ s of [\d.]+ s were recorded", found.cut)
    assert "aten::sum" not in {row.name for row in found.operations(40)}


def test_memory_has_its_peak_and_who_used_most(cells: Cells) -> None:
    code = """if rank == 2:
    block = torch.ones(60_000_000)
    del block"""
    run, _ = _recorded(cells, code)
    fetched = cells.cluster.profiler.recorded(run.id, "memory", run.task.ranks)
    peaks = {rank: each["peak"] - each["process"] for rank, each in fetched.by_rank.items()}
    assert peaks[2] > 150e6
    assert all(peaks[rank] < 100e6 for rank in (0, 1, 3))
    if not any(each["devices"] for each in fetched.by_rank.values()):
        text = memory_text(fetched, "train")
        assert "so this is the memory of their processes. Rank 2 has used most, " in text


def _event(start: int) -> TraceEvent:
    return {"name": "a", "cat": "compute", "thread": "1", "start": start, "duration": 5_000}


def _record(start: int) -> TorchRecord:
    return {
        "trouble": "",
        "start": start,
        "end": start + 10**9,
        "stopped": start + 10**9,
        "has_device": False,
        "found": 1,
        "events": [_event(start + 1000)],
        "operations": [],
        "bins": [[0, 50, 50]] * 10,
    }


def test_no_share_is_below_nothing() -> None:
    assert [percent(share) for share in (-0.004, 0.0, 0.126)] == ["0 %", "0 %", "13 %"]


def test_clocks_of_nodes_are_aligned(tmp_path: Path) -> None:
    an_hour = 3600 * 10**9
    found = Trace({0: _record(10**18), 1: _record(10**18 + an_hour)}, {0: 0, 1: an_hour}, {})
    found.write(tmp_path / "t.json")
    events: list[dict[str, Any]] = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [event["ts"] for event in events if event["ph"] == "X"] == [1.0, 1.0]


def test_what_is_no_record_is_none() -> None:
    assert _unpacked(b"") is None
    assert _unpacked(b"garbage") is None
    assert _unpacked(zlib.compress(b"[" * 100_000)) is None
    assert _unpacked(zlib.compress(b" " * 1001 + b"{}"), largest=1000) is None
    assert _unpacked(zlib.compress(b"{}")) == {}
