"""Digests of content that tell also how often the notebook has written to tensors, as torch counts.

After ``model.load_state_dict(initial)`` in the notebook, its model may hold what it held when ranks
were sent it, and theirs what they have trained since. So the content does not tell that the
notebook has written to it. The counter does that torch keeps for backward passes.

torch is never imported here: where it is not loaded, nothing is a tensor.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries
from jupyter_sky.serialization.pickling import Pickled
from jupyter_sky.transport.protocol.messages import Packed


def digest(pickled: Pickled, digests: dict[tuple[int, int], str]) -> str:
    """Return the digest of a pickle; ``digests`` are those of memory (see `blobs.pack`)."""
    return digest_of_packed(blobs.pack(pickled, digests)[0], pickled.shared)


def digest_of_packed(packed: Packed, objects: MemoEntries) -> str:
    """Return the digest of a packed pickle with these objects in it."""
    content, written = blobs.content(packed), _written(objects)
    return blobs.digest(f"{content} {written}".encode()) if written else content


def of_tensor(tensor: Any) -> str:
    """Return how often a tensor was written to."""
    try:
        return str(tensor._version)
    except RuntimeError:  # torch does not count it in inference mode
        return ""


def _written(objects: MemoEntries) -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    kinds = {type(obj) for _, obj in objects.values()}
    kinds = {kind for kind in kinds if issubclass(kind, torch.Tensor)}
    tensors = [each for each in objects.values() if kinds and type(each[1]) in kinds]
    return " ".join(of_tensor(tensor) for _, tensor in sorted(tensors, key=lambda each: each[0]))
