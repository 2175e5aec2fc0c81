"""Records a rank during a run, around the user's code, and sends the recording to the agent."""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from jupyter_sky.transport.protocol.profiling import PACKED_SIZE, CodeOver, Recorded, RecordKind

_PARTS = 3  # attempts to make a recording small enough to send

Send = Callable[[Recorded | CodeOver], object]


def recording(
    kinds: Sequence[RecordKind], run: str, send: Send
) -> contextlib.AbstractContextManager[None]:
    """Record during a block; send the recording, however the block ends."""
    return _recording(kinds, run, send) if kinds else contextlib.nullcontext()


@contextlib.contextmanager
def _recording(kinds: Sequence[RecordKind], run: str, send: Send) -> Iterator[None]:
    pid = os.getpid()
    ends: dict[RecordKind, Callable[[], Mapping[str, Any]]] = {}
    if "memory" in kinds:
        from jupyter_sky.node.rank.profiling import memory

        ends["memory"] = memory.begin()
    if "torch" in kinds:
        from jupyter_sky.node.rank.profiling import torch_profiler

        ends["torch"] = torch_profiler.begin()
    try:
        yield
    finally:
        # A child that the user's code forked may get here, too.
        if os.getpid() == pid:
            send({"code_over": run})  # before torch keeps this process busy for seconds
            for kind, end in reversed(ends.items()):
                send({"recorded": run, "kind": kind, "data": _packed(end())})


def _packed(record: Mapping[str, Any]) -> bytes:
    for _ in range(_PARTS):
        data = zlib.compress(json.dumps(record).encode(), 6)
        if len(data) <= PACKED_SIZE:
            return data
        record = {**record, "events": record["events"][: len(record["events"]) // 4]}
    return zlib.compress(json.dumps({**record, "events": []}).encode())
