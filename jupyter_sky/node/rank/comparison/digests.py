"""Digests of single values: the same bytes give the same digest on every rank.

A tensor on a GPU is hashed there, in integer arithmetic, so that its bytes need not be copied to
the processor and the order of summation does not matter. Digests are only compared between ranks
that use the same kind of device: another device is a difference by itself.
"""

from __future__ import annotations

import hashlib
from typing import Any

_BLOCK = 1 << 24  # bytes that are hashed together
_SEEDS = (-7046029254386353131, -4417276706812531889)
_MIX = (-4658895280553007687, -7723592293110705685)


def of_bytes(*pieces: Any) -> str:
    """Return the digest of bytes, or of an object with the buffer protocol."""
    digest = hashlib.blake2b(digest_size=12)
    for piece in pieces:
        digest.update(piece)
    return digest.hexdigest()


def of_text(text: str) -> str:
    """Return the digest of a text."""
    return of_bytes(text.encode("utf-8", "surrogatepass"))


def of_array(array: Any) -> str:
    """Return the digest of a NumPy array without objects."""
    import numpy as np

    flat = array.reshape(-1) if array.flags.c_contiguous else np.ravel(array)
    return of_bytes(np.ascontiguousarray(flat).view(np.uint8))


def of_tensor(tensor: Any) -> str:
    """Return the digest of a tensor on any device."""
    import torch

    if tensor.layout is not torch.strided:
        tensor = tensor.coalesce() if tensor.layout is torch.sparse_coo else tensor
        return of_bytes(*(of_tensor(each).encode() for each in _dense_parts(tensor)))
    if tensor.is_quantized:
        tensor = tensor.int_repr()
    if tensor.is_complex():
        tensor = torch.view_as_real(tensor.resolve_conj())
    flat = tensor.detach().resolve_neg().contiguous().reshape(-1)
    data = flat.view(torch.uint8) if flat.numel() else flat.new_empty(0, dtype=torch.uint8)
    if data.device.type == "cpu":
        return of_bytes(data.numpy())
    if data.device.type == "meta":
        return "meta"
    return _mixed(data)


def _dense_parts(tensor: Any) -> list[Any]:
    if tensor.is_sparse:
        return [tensor.indices(), tensor.values()]
    rows = hasattr(tensor, "crow_indices") and "csr" in str(tensor.layout)
    first = tensor.crow_indices() if rows else tensor.ccol_indices()
    second = tensor.col_indices() if rows else tensor.row_indices()
    return [first, second, tensor.values()]


def _mixed(data: Any) -> str:
    """Return the digest of bytes on a GPU, computed there."""
    import torch

    # Two independent sums: 64 bits would suffice against chance, but this costs no more.
    sums = [0, 0]
    for start in range(0, data.numel(), _BLOCK):
        block = data[start : start + _BLOCK]
        if missing := -block.numel() % 8:
            block = torch.cat([block, block.new_zeros(missing)])
        if block.storage_offset() % 8:
            block = block.clone()
        words = block.view(torch.int64)
        places = torch.arange(words.numel(), device=data.device, dtype=torch.int64) + start // 8 + 1
        for at, (seed, factor) in enumerate(zip(_SEEDS, _MIX, strict=True)):
            mixed = words ^ (places * seed)
            mixed = (mixed ^ (mixed >> 32)) * factor
            mixed = (mixed ^ (mixed >> 29)) * seed
            mixed = mixed ^ (mixed >> 32)
            sums[at] = (sums[at] + int(mixed.sum().item())) % (1 << 64)
    return of_bytes(*(each.to_bytes(8, "little") for each in (*sums, data.numel())))
