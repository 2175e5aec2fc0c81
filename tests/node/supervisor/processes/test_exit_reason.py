"""What is said of a process that has ended."""

from __future__ import annotations

import asyncio
from pathlib import Path

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.processes.exit_reason import ExitReasons, last_lines
from jupyter_sky.node.supervisor.rank_process import RankProcess, shared_fields
from jupyter_sky.transport.protocol.messages import whole_request
from tests.waiting import PATIENCE

CRASH = b"Fatal Python error: Segmentation fault\n\nCurrent thread 0x01 (most recent call first):\n"


def test_one_that_ends_before_its_first_run_is_not_explained_by_the_one_before_it(
    tmp_path: Path,
) -> None:
    async def lose_two() -> None:
        rank = RankProcess(0, LogFile(tmp_path / "rank0.log"), lambda *_: None, lambda *_: None)
        with rank.descriptors():
            rank.log.append(CRASH)
        assert last_lines(rank).startswith("Fatal Python error")
        rank.close()
        with rank.descriptors():
            assert last_lines(rank) == ""
            assert ExitReasons().explain(1, rank) == "its process ended with status 1"
            rank.log.append(b"no memory\n")
            assert ExitReasons().explain(1, rank) == "its process ended with status 1 (no memory)"
        rank.close()

    asyncio.run(asyncio.wait_for(lose_two(), PATIENCE))


def test_one_whose_log_the_user_has_emptied_is_explained_by_its_last_run(tmp_path: Path) -> None:
    async def lose() -> None:
        log = LogFile(tmp_path / "rank0.log")
        rank = RankProcess(0, log, lambda *_: None, lambda *_: None)
        log.append(b"of the process before it\n" * 100)
        with rank.descriptors():
            (tmp_path / "rank0.log").write_bytes(b"")
            log.append(b"of a run before\n")
            only = [(0, 0)]
            request = whole_request({"run": "last", "title": "", "show": only, "everyone": only})
            rank.send_run(request, shared_fields(request), None)
            log.append(CRASH)
            assert last_lines(rank).startswith("Fatal Python error")
        rank.close()

    asyncio.run(asyncio.wait_for(lose(), PATIENCE))
