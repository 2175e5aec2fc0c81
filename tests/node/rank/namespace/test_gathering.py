"""What is gathered for the notebook is in the node's memory once."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from jupyter_sky.node.rank.namespace.gathering import GatheredFiles
from jupyter_sky.serialization import blobs, pickling
from tests.installed import on_first_use

torch = on_first_use("torch")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "complex64"])
def test_a_kept_tensor_is_a_blob_already_when_it_is_packed(tmp_path: Path, dtype: str) -> None:
    wanted = getattr(torch, dtype)
    original = torch.randn(300, 200).to(wanted)
    files = GatheredFiles(tmp_path)
    kept = files.keep(original.t())  # not contiguous
    assert torch.equal(kept, original.t()) and kept.dtype == wanted
    [file] = tmp_path.iterdir()
    packed, parts = blobs.pack(pickling.dump(kept), files.digests)
    [key] = parts
    assert key == blobs.digest(parts[key])
    assert files.take(key) == file
    file.rename(tmp_path / key)
    assert torch.equal(blobs.unpack(packed, tmp_path), original.t())
    assert files.keep(original.t()).data_ptr() != kept.data_ptr()
    files.discard()
    assert [path.name for path in tmp_path.iterdir()] == [key]  # found there, not written again


def test_what_nobody_takes_is_removed(tmp_path: Path) -> None:
    files = GatheredFiles(tmp_path)
    first = files.keep(torch.arange(100_000))
    again = files.keep(torch.arange(100_000))
    small = files.keep(torch.arange(10))
    assert len(list(tmp_path.iterdir())) == 1
    files.discard()
    gc.collect()
    assert not list(tmp_path.iterdir())
    assert torch.equal(first, again) and small.sum() == 45


def test_a_full_folder_is_an_error_that_leaves_nothing(tmp_path: Path) -> None:
    files = GatheredFiles(tmp_path / "gone")
    with pytest.raises(OSError):
        files.keep(torch.arange(100_000))
    files.discard()
