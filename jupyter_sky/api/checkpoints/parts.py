"""Checkpoints on the nodes' own disks: each node has the parts of its ranks.

To load one, ranks read the parts that their node has. Other parts are sent by a rank of another
node, piece by piece and only as needed: on the same ranks as before, that is next to nothing.
"""

from __future__ import annotations

import collections
import contextlib
import pickle
import re
import tempfile
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jupyter_sky.errors import SkyError, UsageError
from jupyter_sky.formatting import format_ranks

if TYPE_CHECKING:
    from jupyter_sky.api.checkpoints.together import CheckpointGroup

METADATA = ".metadata"
_CHUNK = 16 * 1024 * 1024
_PART = re.compile(r"__(\d+)_\d+\.distcp")

Piece = tuple[str, int, int]
"""The name of a file, an offset in it, and a length."""


@dataclass(frozen=True)
class Parts:
    """Which ranks can see which files of a save.

    Attributes
    ----------
    folder
        The folder of the files, on each node.
    metadata
        The metadata that torch wrote about all of them, pickled.
    seen
        The files that each rank can see.
    """

    folder: str
    metadata: bytes
    seen: Sequence[Collection[str]]

    def check(self, path: str) -> None:
        """Refuse a checkpoint with parts that no node has.

        Raises
        ------
        UsageError
            With advice on what to do.
        """
        needed = {info.relative_path for info in self.read().storage_data.values()}
        if lost := needed.difference(*self.seen):
            numbers = (int(found[1]) for name in lost if (found := _PART.fullmatch(name)))
            raise UsageError(
                f"{path} was saved on the nodes' own disks, and what {format_ranks(numbers)} wrote "
                "is on no node of this cluster: load it with those nodes, or save to a folder that "
                "all nodes share, or a bucket (s3://…)."
            )

    def read(self) -> Any:
        """Return torch's metadata about the files."""
        return pickle.loads(self.metadata)

    def owner(self, name: str) -> int:
        """Return the first rank that can see a file."""
        return next(rank for rank, names in enumerate(self.seen) if name in names)


def make_reader(parts: Parts, together: CheckpointGroup) -> Any:
    """Return torch's reader for files that are spread over nodes; all ranks call this together."""
    from torch.distributed.checkpoint import FileSystemReader

    own, group = parts.seen[together.rank], together.background_group()

    class Reader(FileSystemReader):  # type: ignore[misc]
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            metadata = parts.read()
            metadata.storage_meta.load_id = self.load_id
            return metadata

        def read_data(self, plan: Any, planner: Any) -> Any:
            lacking: dict[Piece, list[Any]] = {}
            here = []
            for item in plan.items:
                info = self.storage_data[item.storage_index]
                if info.relative_path in own:
                    here.append(item)
                else:
                    piece = (info.relative_path, info.offset, info.length)
                    lacking.setdefault(piece, []).append(item)
            errors: list[Exception] = []
            try:
                done = super().read_data(replace(plan, items=here), planner)
            except Exception as error:  # the other ranks wait for its answer, and for its parts
                errors.append(error)
            wanted = together.tell(list(lacking))
            for asking, piece in _in_turn(wanted):
                if together.rank == parts.owner(piece[0]):
                    _send(Path(parts.folder, piece[0]), piece, asking, group)
                if together.rank != asking:
                    continue
                received = _receive(piece, parts.owner(piece[0]), group)
                try:
                    with tempfile.TemporaryDirectory(prefix="sky-load-") as folder:
                        _write(received, Path(folder, piece[0]), piece)
                        self.path, before = Path(folder), self.path
                        try:
                            super().read_data(replace(plan, items=lacking[piece]), planner)
                        finally:
                            self.path = before
                except Exception as error:  # the other ranks continue with their pieces
                    errors.append(error)
                    with contextlib.suppress(SkyError):
                        collections.deque(received, maxlen=0)  # the owner sends the rest, too
            if errors:
                raise errors[0]
            return done

    return Reader(parts.folder)


def _in_turn(wanted: Sequence[Sequence[Piece]]) -> list[tuple[int, Piece]]:
    """Return which rank gets which piece, in a common order, so that there is no deadlock."""
    return [(rank, piece) for rank, pieces in enumerate(wanted) for piece in pieces]


def _send(file: Path, piece: Piece, to: int, group: Any) -> None:
    """Send a piece in chunks, each behind a 0, or behind a length why the rest cannot be read."""
    import torch
    import torch.distributed as dist

    _, offset, length = piece
    try:
        with file.open("rb") as opened:
            opened.seek(offset)
            while length > 0:
                chunk = torch.zeros(min(_CHUNK, length), dtype=torch.uint8, device="cpu")
                opened.readinto(memoryview(chunk.numpy()))
                dist.send(torch.tensor([0], device="cpu"), to, group=group)
                dist.send(chunk, to, group=group)
                length -= chunk.numel()
    except OSError as error:
        trouble = str(error).encode()
        dist.send(torch.tensor([len(trouble)], device="cpu"), to, group=group)
        dist.send(torch.frombuffer(bytearray(trouble), dtype=torch.uint8), to, group=group)


def _receive(piece: Piece, owner: int, group: Any) -> Iterator[Any]:
    """Receive the chunks of a piece.

    Raises
    ------
    SkyError
        If its owner cannot read it; it then sends no more of it.
    """
    import torch
    import torch.distributed as dist

    *_, length = piece
    while length > 0:
        said = torch.zeros(1, dtype=torch.int64, device="cpu")
        dist.recv(said, owner, group=group)
        if said.item():
            trouble = torch.zeros(int(said.item()), dtype=torch.uint8, device="cpu")
            dist.recv(trouble, owner, group=group)
            raise SkyError(f"rank {owner} cannot read {trouble.numpy().tobytes().decode()}")
        chunk = torch.zeros(min(_CHUNK, length), dtype=torch.uint8, device="cpu")
        dist.recv(chunk, owner, group=group)
        yield chunk
        length -= chunk.numel()


def _write(chunks: Iterable[Any], file: Path, piece: Piece) -> None:
    """Write the chunks of a piece at its offset in a sparse file."""
    _, offset, _ = piece
    with file.open("wb") as written:
        written.seek(offset)
        for chunk in chunks:
            written.write(memoryview(chunk.numpy()))


def newest(markers: Sequence[Mapping[str, Any] | None]) -> dict[str, Any] | None:
    """Return the newest valid save that ranks found: nodes may have left and come back."""
    found = [dict(marker) for marker in markers if marker]
    return max(found, key=lambda marker: marker.get("time", 0.0), default=None)
