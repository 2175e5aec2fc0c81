"""The log of an agent, which no error fills a disk with."""

from __future__ import annotations

import logging
from pathlib import Path

from jupyter_sky.node.agent.agent_log import AgentLog


def test_it_has_a_limit_and_keeps_the_newest_lines(tmp_path: Path) -> None:
    path = tmp_path / "agent.log"
    with path.open("a") as stream, path.open("ab", buffering=0) as others:
        log = AgentLog(path, limit=10_000)
        log.setStream(stream)
        for n in range(1000):
            log.handle(logging.LogRecord("", logging.ERROR, "", 0, "line %d", (n,), None))
            others.write(b"what others write\n")
    lines = path.read_text().splitlines()
    assert path.stat().st_size <= 11_000
    said = [line.rpartition(" ")[2] for line in lines if "line" in line]
    assert said == [str(n) for n in range(1000 - len(said), 1000)]
    assert len(said) > 50
