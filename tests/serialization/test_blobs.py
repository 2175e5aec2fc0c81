"""Packed values: large parts are blobs, and small ones share them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest

from jupyter_sky.serialization import blobs, pickling
from tests.installed import on_first_use

numpy = on_first_use("numpy")

MANY = 3000


def many() -> list[Any]:
    return [numpy.arange(number, number + 100 + number % 800) for number in range(MANY)]


def open_files() -> int:
    return psutil.Process().num_fds()


def written(folder: Path, value: Any) -> Any:
    """Return what a value is packed as; its blobs are in the folder then."""
    packed, parts = blobs.pack(pickling.dump(value))
    for key, data in parts.items():
        (folder / key).write_bytes(data)
    return packed


def test_many_small_arrays_share_few_blobs(tmp_path: Path) -> None:
    arrays = many()
    packed = written(tmp_path, arrays)
    assert len(list(tmp_path.iterdir())) < 20
    assert blobs.references(packed).keys() == {path.name for path in tmp_path.iterdir()}
    total = sum(each.nbytes for each in arrays)
    assert total < blobs.size(packed) < total + MANY * 100
    found = blobs.unpack(packed, tmp_path)
    assert all(map(numpy.array_equal, found, arrays))
    assert all(each.flags.aligned and each.ctypes.data % 64 == 0 for each in found[-9:])
    # Each can be written to, and none has a byte of another.
    for number, each in enumerate(found):
        each[:] = number
    assert all((each == number).all() for number, each in enumerate(found))
    assert numpy.array_equal(blobs.unpack(packed, tmp_path)[7], arrays[7]), "only here"


def test_equal_arrays_do_not_share_memory(tmp_path: Path) -> None:
    packed = written(tmp_path, [numpy.zeros(50_000) for _ in range(3)])
    [file] = tmp_path.iterdir()
    memory = {file.name: bytearray(file.read_bytes())}
    for found in blobs.unpack(packed, tmp_path), pickling.load(*blobs.parts_in(packed, memory)):
        for number, each in enumerate(found):
            each[:] = number
        assert [each[0] for each in found] == [0, 1, 2]
    assert blobs.memory_size(packed) == 3 * 50_000 * 8


@pytest.mark.parametrize("change", ["changed", "new", "gone"])
def test_an_array_is_sent_again_with_its_neighbours_only(change: str) -> None:
    arrays = [numpy.arange(number, number + 20_000) for number in range(1500)]
    before = blobs.pack(pickling.dump(arrays))
    match change:
        case "changed":
            arrays[700][0] += 1
        case "new":
            arrays.insert(0, numpy.arange(7, 20_000))
        case "gone":
            del arrays[0]
    after = blobs.pack(pickling.dump(arrays))
    assert blobs.content(before[0]) != blobs.content(after[0])
    sent = sum(after[1][key].nbytes for key in after[1].keys() - before[1].keys())
    assert sent < sum(each.nbytes for each in arrays) / 5


def test_what_calls_share_is_copied_for_none_of_them() -> None:
    tables = [numpy.arange(number, number + 50_000) for number in range(20)]
    digests = blobs.MemoryDigests()
    packed = [blobs.pack(pickling.dump([number, *tables]), digests)[1] for number in range(3)]
    views = [memoryview(each).cast("B") for each in tables]
    assert all(
        numpy.shares_memory(found, own)
        for parts in packed
        for found, own in zip(parts.values(), views[-len(parts) :], strict=True)
    )


def test_the_content_of_arrays_that_lie_in_one_blob_is_told_apart() -> None:
    rest = many()
    arrays = [numpy.zeros(50_000), numpy.zeros(60_000), *rest]
    other = [numpy.zeros(60_000), numpy.zeros(50_000), *rest]
    packed = [blobs.pack(pickling.dump(each))[0] for each in (arrays, other, arrays)]
    first, second, third = map(blobs.content, packed)
    assert first != second
    assert first == third


def test_no_file_stays_open_for_a_value(tmp_path: Path) -> None:
    large = [numpy.full(200_000, float(number)) for number in range(40)]
    packed = written(tmp_path, large)
    before = open_files()
    found = blobs.unpack(packed, tmp_path)
    assert open_files() == before
    assert all(map(numpy.array_equal, found, large))


def test_an_array_is_hashed_once_for_as_long_as_it_is_there() -> None:
    memory = bytearray(2 * 1024 * 1024)
    digests = blobs.MemoryDigests()

    def packed(array: Any) -> str:
        [key] = blobs.pack(pickling.dump(array), digests)[1]
        return key

    first = numpy.frombuffer(memory, "u1")
    before = digests.of(first)
    first[0] = 1
    assert digests.of(first) == digests.of(first[:]) == before, "it is not hashed again"
    del first
    other = numpy.frombuffer(memory, "u1")  # at the same address
    assert digests.of(other) == blobs.digest(memory) == packed(other) != before
