"""Notices that a machine will be taken away, as an agent reads them."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from jupyter_sky.node.agent import notices
from jupyter_sky.node.agent.notices import Notice
from jupyter_sky.transport.protocol.agent_spec import NOTICE_FILE


def test_a_notice_is_seen_though_its_file_could_not_be_read_for_a_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notices, "_READ_EVERY", 0.001)
    file, reads, read_text = tmp_path / NOTICE_FILE, [0], Path.read_text

    def failing_at_first(path: Path) -> str:
        reads[0] += 1
        if reads[0] == 1:
            raise OSError(24, "Too many open files", str(path))
        if reads[0] == 3:
            file.write_text(json.dumps({"kind": "terminate", "at": 5.0}))
        return read_text(path)

    monkeypatch.setattr(Path, "read_text", failing_at_first)

    async def first_notice() -> Notice:
        found: asyncio.Future[Notice] = asyncio.get_running_loop().create_future()
        watching = asyncio.create_task(notices.watch("file", tmp_path, found.set_result))
        await asyncio.wait({found, watching}, return_when=asyncio.FIRST_COMPLETED)
        watching.cancel()
        return found.result()

    assert asyncio.run(first_notice()) == Notice("terminate", 5.0)
