"""A group of two backends, as on GPUs: each counts and records its own collectives."""

from __future__ import annotations

import gc
import pickle
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from jupyter_sky.cluster.inspection.findings import findings
from jupyter_sky.node.rank.inspection.collectives import CollectiveRecords
from jupyter_sky.node.rank.inspection.inspector import Inspector
from jupyter_sky.transport.protocol.rank_messages import InspectCommand
from tests.installed import on_first_use

torch = on_first_use("torch")


@pytest.fixture
def group() -> Iterator[Any]:
    """Form a group of one rank; what stands for NCCL does nothing, and counts nothing."""
    from torch.testing._internal.distributed import fake_pg  # noqa: F401

    dist = torch.distributed
    dist.init_process_group("cpu:gloo,cuda:fake", store=dist.HashStore(), rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


def _of_nccl(operation: str, number: int, is_over: bool) -> dict[str, Any]:
    """An entry of the recorder that builds of torch for GPUs have beside that of gloo."""
    return {
        "process_group": (torch.distributed.group.WORLD.group_name, "default_pg"),
        "profiling_name": f"nccl:{operation}",
        "collective_seq_id": number, "input_sizes": [[8]], "input_dtypes": ["Float"],
        "time_created_ns": time.time_ns(), "state": "completed" if is_over else "scheduled",
        "retired": is_over, "is_p2p": False,
    }  # fmt: skip


@pytest.fixture
def nccl(group: Any, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Record, as NCCL does, the entries that are put in here."""
    entries: list[dict[str, Any]] = []

    def dump(*_: object) -> bytes:
        return pickle.dumps({"entries": entries})

    c10d = sys.modules["torch._C._distributed_c10d"]
    monkeypatch.setattr(c10d, "_dump_nccl_trace", dump, raising=False)
    return entries


def test_those_of_both_are_seen(nccl: list[dict[str, Any]]) -> None:
    records = CollectiveRecords()
    records.begin()
    torch.distributed.all_reduce(torch.ones(2))
    assert records.wait_until_ended(10)
    nccl.append(_of_nccl("broadcast", 1, is_over=False))
    waiting, begun = records.read()
    assert [(one["operation"], one["shapes"]) for one in waiting] == [("broadcast", "float32 [8]")]
    assert [one["operation"] for one in begun] == ["all_reduce", "broadcast"]
    # The processor does not wait for what it has given to NCCL.
    assert records.wait_until_ended(0, on_gpu=False)
    assert not records.wait_until_ended(0)


def test_they_are_read_while_another_thread_lists_all_objects(
    group: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Python gives up a tuple that is being made and that somebody else has found.
    listed: list[Any] = []

    def dump(*_: object) -> bytes:
        listed.append(gc.get_objects())
        return pickle.dumps({"entries": [_of_nccl("broadcast", 1, is_over=False)]})

    c10d = sys.modules["torch._C._distributed_c10d"]
    monkeypatch.setattr(c10d, "_dump_nccl_trace", dump, raising=False)
    waiting, _ = CollectiveRecords().read()
    assert listed and [one["operation"] for one in waiting] == ["broadcast"]


def test_a_record_that_cannot_be_read_is_answered_all_the_same(
    nccl: list[dict[str, Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Another version of torch may write others. Without an answer, the agent would ask no more.
    nccl.append({"time_created_ns": 1})
    with (tmp_path / "stacks").open("w+b") as stacks:
        inspector = Inspector(stacks.fileno())
        command: InspectCommand = {"op": "inspect", "number": 7, "brief": False}
        answer = inspector.answer(command, "", sys._getframe(), is_failing=False)
    assert (answer["inspected"], answer["collectives"]) == (7, [])
    assert "KeyError: 'process_group'" in capsys.readouterr().err


def test_those_of_either_are_progress(group: Any) -> None:
    records = CollectiveRecords()
    records.has_moved()
    torch.distributed.all_reduce(torch.ones(2))
    assert records.has_moved()
    assert not records.has_moved()


def test_equal_numbers_of_both_are_no_contradiction(nccl: list[dict[str, Any]]) -> None:
    records = CollectiveRecords()
    records.begin()
    torch.distributed.all_reduce(torch.ones(2))
    assert records.wait_until_ended(10)
    gloo = torch.distributed.group.WORLD._get_backend(torch.device("cpu"))
    number = gloo._get_sequence_number_for_group()
    nccl.append(_of_nccl("broadcast", number, is_over=False))
    waiting, begun = records.read()
    seen: list[Any] = [
        {
            "rank": rank, "run": "r", "ended": None, "answered": "itself", "frames": [],
            "collectives": waiting, "recent": recent, "children": [],
        }
        for rank, recent in enumerate([begun, begun[::-1]])
    ]  # fmt: skip
    sentence = findings(seen, range(2), {}).sentence
    assert sentence.startswith(f"ranks 0-1 wait in broadcast #{number} for ")
    assert "do not belong together" not in sentence
