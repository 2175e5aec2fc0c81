"""Digests of content that tell also how often the notebook has written to tensors, as torch counts.

After ``model.load_state_dict(initial)`` in the notebook, its model may hold what it held when ranks
were sent it, and theirs what they have trained since. So the content does not tell that the
notebook has written to it. The counter does that torch keeps for backward passes, and one of ours
for what is written through ``tensor.data``, which torch does not count.

torch is never imported here: where it is not loaded, nothing is a tensor.
"""

from __future__ import annotations

import sys
from typing import Any

from jupyter_sky.serialization import blobs
from jupyter_sky.serialization.object_tokens.kinds import MemoEntries
from jupyter_sky.serialization.pickled import Pickled
from jupyter_sky.transport.blobs.packed import Packed

_noted: Any = None
"""How often `note` was called, by tensor, as soon as there is one."""


def digest(pickled: Pickled, digests: blobs.MemoryDigests) -> str:
    """Return the digest of a pickle; ``digests`` are those of memory."""
    return digest_of_packed(blobs.pack(pickled, digests)[0], pickled.shared)


def digest_of_packed(packed: Packed, objects: MemoEntries) -> str:
    """Return the digest of a packed pickle with these objects in it."""
    content, written = blobs.content(packed), _written(objects)
    return blobs.digest(f"{content} {written}".encode()) if written else content


def of_tensor(tensor: Any) -> str:
    """Return how often a tensor was written to."""
    noted = f"+{_noted[tensor]}" if _noted and tensor in _noted else ""
    try:
        return f"{tensor._version}{noted}"
    except RuntimeError:  # torch does not count it in inference mode
        return noted


def note(value: Any) -> None:
    """Count that a value was written to, if it is a tensor; torch may have counted it, too."""
    global _noted
    torch = sys.modules.get("torch")
    if torch and isinstance(value, torch.Tensor):
        if _noted is None:
            from torch.utils.weak import WeakTensorKeyDictionary

            _noted = WeakTensorKeyDictionary()
        _noted[value] = _noted.get(value, 0) + 1


def _written(objects: MemoEntries) -> str:
    torch = sys.modules.get("torch")
    if torch is None:
        return ""
    kinds = {type(obj) for _, obj in objects.values()}
    kinds = {kind for kind in kinds if issubclass(kind, torch.Tensor)}
    tensors = [each for each in objects.values() if kinds and type(each[1]) in kinds]
    return " ".join(of_tensor(tensor) for _, tensor in sorted(tensors, key=lambda each: each[0]))
