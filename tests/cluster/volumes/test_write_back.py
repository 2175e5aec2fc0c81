"""What some nodes have written goes back, whatever becomes of the others."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import Any

from jupyter_sky.cluster.volumes import mount
from jupyter_sky.errors import NoConnection


@dataclass
class Node:
    """A node that answers when another one has failed, or fails."""

    name: str
    failed: asyncio.Event
    fails: bool = False
    written: list[Any] = field(default_factory=list)

    async def request(self, kind: str, **given: Any) -> dict[str, Any]:
        if self.fails:
            self.failed.set()
            raise NoConnection(f"there is no connection to {self.name}.")
        await self.failed.wait()
        await asyncio.sleep(0)
        return {"volumes": self.written}


def test_a_node_out_of_reach_does_not_keep_others_from_writing_back() -> None:
    written = {"url": "s3://b", "path": "/b", "files": 1, "size": 4, "left": [], "trouble": ""}

    async def write_back() -> Any:
        failed = asyncio.Event()
        nodes: Any = [Node("n1", failed, fails=True), Node("n2", failed, written=[written])]
        return await mount.write_back(nodes)

    said, troubles = asyncio.run(write_back())
    assert mount.sentences(said)[0] == ["wrote 1 file, 4 B, to s3://b"]
    assert troubles == [
        "what ranks of n1 have written to volumes may not be there: there is no connection to n1."
    ]
