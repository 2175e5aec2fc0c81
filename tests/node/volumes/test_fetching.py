"""Files of a volume that ranks and notebooks fetch ahead."""

from __future__ import annotations

import pytest

import jupyter_sky as sky
from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import Keeper


@pytest.mark.parametrize(
    "name", ["small/", "./small", "{data}/small", "sm*", "small/[1].bin", "small/../small/*"]
)
def test_files_are_fetched_whichever_way_they_are_named(
    name: str, keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/small/[1].bin": b"first", "d/large": b"other"})
    assert keeper.mount("s3://photos/d") == ""
    sky.volume(keeper.data).fetch(name.format(data=keeper.data))
    assert (bucket.reads("d/small/[1].bin") > 0, bucket.reads("d/large")) == (True, 0)


def test_a_name_to_fetch_that_is_not_there_is_said(keeper: Keeper, bucket: Buckets) -> None:
    bucket.put({"d/small/a.bin": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    volume = sky.volume(keeper.data)
    for name, said in (
        ("nosuch.bin", "no file of .*/data matches nosuch.bin: name files or folders that are"),
        ("smal/", "matches smal:"),
        ("small/*.jpg", r"matches small/\*\.jpg:"),
        ("../data2/small", "is not in"),
    ):
        with pytest.raises(sky.UsageError, match=said):
            volume.fetch("small", name)
        assert not bucket.reads("d/small/a.bin")
    (keeper.data / "new.txt").write_text("new")
    volume.fetch("new.txt", "*.txt", "small")
    volume.fetch("small/a.bin")
    bucket.put({"d/later.bin": b"later"})
    with pytest.raises(sky.UsageError, match=r"`refresh\(\)` shows what is new in the bucket"):
        volume.fetch("later.bin")
    volume.refresh()
    volume.fetch("later.bin")
    assert bucket.reads("d/later.bin")
