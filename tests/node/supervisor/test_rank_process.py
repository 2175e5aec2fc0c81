"""A rank's process, as its agent has it."""

from __future__ import annotations

import asyncio
import os
import socket
from pathlib import Path

import pytest

from jupyter_sky.node.supervisor.output.log_file import LogFile
from jupyter_sky.node.supervisor.rank_process import RankProcess
from tests.waiting import PATIENCE


def test_one_that_is_still_to_come_is_not_ended(tmp_path: Path) -> None:
    async def end() -> None:
        rank = RankProcess(0, LogFile(tmp_path / "rank0.log"), lambda *_: None, lambda *_: None)
        with rank.descriptors() as theirs:
            rank.end(within=1.0)
            with socket.socket(fileno=os.dup(theirs[0])) as commands:
                commands.setblocking(False)
                await asyncio.sleep(0)
                with pytest.raises(BlockingIOError):
                    commands.recv(1)
        assert not rank.is_ending
        rank.close()

    asyncio.run(asyncio.wait_for(end(), PATIENCE))
