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


@dataclass
class NodeOfCheckpoint:
    """A node whose marker of a checkpoint has to wait for the part of another node."""

    name: str
    own: str
    bucket: set[str]
    is_first: bool

    async def request(self, kind: str, **given: Any) -> dict[str, Any]:
        volume = {"url": "s3://b", "path": "/b", "files": 0, "size": 0, "left": [], "trouble": ""}
        if not self.is_first:
            await asyncio.sleep(0.01)
        if self.own not in self.bucket:
            self.bucket.add(self.own)
            volume |= {"files": 1, "size": 4}
        if self.is_first and "part of n2" in self.bucket:
            self.bucket.add("marker")
            volume |= {"files": volume["files"] + 1, "size": volume["size"] + 2}
        elif self.is_first:
            volume |= {"left": ["run/checkpoint.json"], "trouble": "others have yet to write"}
        return {"volumes": [volume]}


def test_the_marker_of_a_checkpoint_is_written_once_all_nodes_have_written_its_parts() -> None:
    bucket: set[str] = set()
    nodes: Any = [
        NodeOfCheckpoint("n1", "part of n1", bucket, is_first=True),
        NodeOfCheckpoint("n2", "part of n2", bucket, is_first=False),
    ]
    said, troubles = asyncio.run(mount.write_back(nodes))
    assert "marker" in bucket
    assert mount.sentences(said) == (["wrote 3 files, 10 B, to s3://b"], [])
    assert troubles == []


@dataclass
class NodeOfTwoVolumes:
    """A node that tells once of trouble in one volume, and has a marker to write in the other."""

    name: str
    asked: int = 0

    async def request(self, kind: str, **given: Any) -> dict[str, Any]:
        self.asked += 1
        volume = {"url": "s3://b", "path": "/b", "files": 1, "size": 2, "left": [], "trouble": ""}
        other = {**volume, "url": "s3://c", "path": "/c"}
        if self.asked == 1:
            volume |= {"left": ["run/checkpoint.json"], "trouble": "others have yet to write"}
            other |= {"trouble": "symbolic links are not written"}
        return {"volumes": [volume, other]}


def test_what_a_node_says_once_is_passed_on_also_if_it_is_asked_again_for_markers() -> None:
    nodes: Any = [NodeOfTwoVolumes("n1")]
    said, _ = asyncio.run(mount.write_back(nodes))
    assert nodes[0].asked == 2
    assert mount.sentences(said)[1] == ["symbolic links are not written (n1)"]
