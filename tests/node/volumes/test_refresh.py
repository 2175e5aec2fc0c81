"""Files of a volume that are open on the node while the bucket is listed again."""

from __future__ import annotations

import subprocess
from pathlib import Path

from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import Keeper


def test_a_file_that_was_written_back_and_is_still_open_stays_the_same_file(
    keeper: Keeper, bucket: Buckets
) -> None:
    assert keeper.mount("s3://photos/d") == ""
    with (keeper.data / "log").open("w") as log:
        for line in ("first\n", "second\n"):
            log.write(line)
            log.flush()
            keeper.ask("write_back")
            assert keeper.ask("refresh", path=str(keeper.data)) == {"trouble": ""}
    assert bucket.get("d/log") == b"first\nsecond\n"
    assert (keeper.data / "log").read_text() == "first\nsecond\n"
    assert bucket.reads("d/log") == 1  # by this test


def test_a_file_that_others_replace_in_the_bucket_is_shown_once_it_is_closed(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    with (keeper.data / "a").open("r+") as file:
        assert file.read() == "first"
        bucket.put({"d/a": b"theirs"})
        keeper.ask("refresh", path=str(keeper.data))
        file.write(" and ours")
    assert keeper.ask("state")["volumes"][0]["unwritten"] == ["a"]
    keeper.ask("write_back")
    assert bucket.get("d/a") == b"first and ours"
    bucket.put({"d/a": b"theirs"})
    keeper.ask("refresh", path=str(keeper.data))
    assert (keeper.data / "a").read_text() == "theirs"


def test_a_disk_without_room_for_what_is_new_is_said(
    keeper: Keeper, bucket: Buckets, small_disk: Path
) -> None:
    keeper.data = small_disk / "data"
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    limit = ["mount", "-o", "remount,nr_inodes={}", str(small_disk)]
    subprocess.run([each.format(8) for each in limit], check=True)
    bucket.put({f"d/{number}": b"new" for number in range(10)})
    said = keeper.ask("refresh", path=str(keeper.data))["trouble"]
    assert said == f"{keeper.data}: No space left on device"
    subprocess.run([each.format(100) for each in limit], check=True)
    assert keeper.ask("refresh", path=str(keeper.data)) == {"trouble": ""}
    assert {(keeper.data / f"{number}").read_bytes() for number in range(10)} == {b"new"}
