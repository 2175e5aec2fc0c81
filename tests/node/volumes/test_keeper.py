"""Files of a bucket on a node's disk: within a limit, over links that break, and when all ends."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from queue import Empty, Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_sky.node.volumes import keeper as keeper_module
from jupyter_sky.transport.volumes.asking import NOTE
from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import READS_EVERYTHING, Keeper, forwarding, holding, keeping
from tests.waiting import PATIENCE, until


def test_what_was_used_longest_ago_makes_room(keeper: Keeper, bucket: Buckets) -> None:
    bucket.put({f"d/{n}": bytes([n]) * 10_000 for n in range(10)})
    assert keeper.mount("s3://photos/d", limit=45_000) == ""
    used = (keeper.data / "0").open("rb")
    for n in range(10):
        assert (keeper.data / f"{n}").read_bytes() == bytes([n]) * 10_000
        assert (keeper.data / "1").read_bytes() == bytes([1]) * 10_000
    until(lambda: keeper.state()["here"] <= 45_000)  # room is made beside who has read
    # What is open stays, and what is used again and again.
    assert used.read() == bytes(10_000)
    used.close()
    assert bucket.reads("d/0") == 1
    assert bucket.reads("d/1") < 5
    # What had to go is there with its size, and comes again.
    assert (keeper.data / "2").stat().st_size == 10_000
    assert (keeper.data / "2").read_bytes() == bytes([2]) * 10_000
    assert bucket.reads("d/2") == 2
    # Nothing of it was written, so nothing goes back.
    assert keeper.ask("write_back")["volumes"][0]["files"] == 0


def test_files_are_for_those_whom_the_umask_leaves(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/secret": bytes(10_000), "d/empty": b"", "d/other": bytes(10_000)})
    (tmp_path / "data").mkdir(mode=0o755)  # by the user, before
    before = os.umask(0o077)
    try:
        with keeping(tmp_path / "data", bucket, workplace) as keeper:
            assert keeper.mount("s3://photos/d", read_only=True, limit=15_000) == ""
            files = [keeper.data / name for name in ("secret", "empty", "other")]
            for path in files * 2:  # what is read last makes room for itself
                path.read_bytes()
            until(lambda: keeper.state()["here"] <= 15_000)
            assert {path.stat().st_mode & 0o777 for path in files} == {0o400}
    finally:
        os.umask(before)


def test_a_file_that_is_opened_while_its_content_goes_is_fetched(tmp_path: Path) -> None:
    # Who opens it waits from the lease on; that this volume has it is noted a moment later.
    opened, begun = threading.Event(), Queue[object]()
    tree, entry = SimpleNamespace(lock=threading.RLock(), by_fd={}), object()

    def wait() -> list[int]:
        if opened.is_set():
            raise EOFError
        opened.set()
        return [7]

    def serve() -> None:
        with suppress(EOFError):
            kept.serve_opens()

    kept = keeper_module.Keeper(str(tmp_path / "socket"), cast(Any, SimpleNamespace(wait=wait)))
    kept._trees = (cast(Any, tree),)
    kept._fetcher = cast(Any, SimpleNamespace(open=lambda tree, entry, now: begun.put(entry)))
    with tree.lock:
        threading.Thread(target=serve).start()
        opened.wait()
        with suppress(Empty):  # longer than it takes to look
            begun.get(timeout=0.05)
        tree.by_fd[7] = entry
    assert begun.get(timeout=PATIENCE) is entry


def test_a_large_file_is_fetched_once_over_a_link_that_breaks(
    keeper: Keeper, bucket: Buckets
) -> None:
    content = os.urandom(40_000_000)
    bucket.put({"d/large": content})
    with breaking(bucket.address, [10_000_000, 15_000_000]) as address:
        assert keeper.mount("s3://photos/d", address) == ""
        readers = [
            subprocess.Popen(["cksum", str(keeper.data / "large")], stdout=subprocess.PIPE)
            for _ in range(4)
        ]
        sums = {reader.communicate(timeout=100)[0] for reader in readers}
    assert len(sums) == 1
    assert (keeper.data / "large").read_bytes() == content
    assert keeper.state()["fetched"] == 1
    # Five parts, and again those that were cut off.
    assert 5 <= bucket.reads("d/large") < 12


def test_what_cannot_be_fetched_is_empty_and_not_zeros(keeper: Keeper, bucket: Buckets) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    bucket.client.delete_object(Bucket="photos", Key="d/a")
    assert subprocess.run(["cat", str(keeper.data / "a")], capture_output=True).stdout == b""
    said = keeper.ask("write_back")["volumes"][0]["trouble"]
    assert said.endswith("/a could not be read: it is not in the bucket any longer")
    bucket.put({"d/a": b"again"})
    assert (keeper.data / "a").read_bytes() == b"again"


def test_files_that_are_moved_or_replaced_before_they_are_read(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first", "d/b": b"second"})
    assert keeper.mount("s3://photos/d") == ""
    (keeper.data / "a").rename(keeper.data / "moved")
    (keeper.data / "new").write_bytes(b"written")
    (keeper.data / "new").replace(keeper.data / "b")
    assert keeper.ask("write_back")["volumes"][0]["files"] == 2
    assert bucket.get("d/moved") == b"first"
    assert bucket.get("d/b") == b"written"
    assert bucket.get("d/a") == b"first"


def test_a_full_disk_is_said(keeper: Keeper, bucket: Buckets, small_disk: Path) -> None:
    bucket.put(
        {"d/a": os.urandom(600_000), "d/b": os.urandom(700_000), "d/c": os.urandom(3_000_000)}
    )
    keeper.data = small_disk / "data"
    assert keeper.mount("s3://photos/d", limit=10**8) == ""
    assert len((keeper.data / "a").read_bytes()) == 600_000
    # The limit is more than there is: what was read before makes room.
    assert len((keeper.data / "b").read_bytes()) == 700_000
    said = keeper.ask("fetch_file", path=str(keeper.data), name="c")["trouble"]
    assert said == "the disk of the node is full"


def test_nothing_but_what_is_nowhere_else_is_left(keeper: Keeper, bucket: Buckets) -> None:
    bucket.put({"d/sub/a": b"first", "d/b": b"second"})
    assert keeper.mount("s3://photos/d") == ""
    (keeper.data / "b").read_bytes()
    (keeper.data / "result").write_bytes(b"result")
    keeper.end()  # the agent was killed
    assert bucket.get("d/result") == b"result"
    assert not keeper.data.exists()


def test_a_path_that_cannot_be_reached_is_refused_in_one_sentence(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    (tmp_path / "closed").mkdir(mode=0)
    data = tmp_path / "closed" / "data"
    with keeping(data, bucket, workplace, without=READS_EVERYTHING) as keeper:
        assert keeper.mount("s3://photos/d", limit=0) == (
            f"{data} cannot be made (Permission denied): choose a path that you may write on the "
            "node, like ~/data"
        )
        assert keeper.ask("state")["volumes"] == []


def test_a_folder_that_cannot_be_read_is_named_and_keeps_nothing_else_from_the_bucket(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    data = tmp_path / "data"
    with keeping(data, bucket, workplace, without=READS_EVERYTHING) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        (data / "result").write_bytes(b"result")
        (data / "closed").mkdir()
        (data / "closed" / "more").write_bytes(b"more")
        (data / "closed").chmod(0)  # to the keeper, as one of another user
        [written] = keeper.ask("write_back")["volumes"]
        assert (written["files"], written["left"]) == (1, ["closed"])
        assert bucket.names() == ["d/a", "d/result"]
    assert (data / "closed" / "more").read_bytes() == b"more"
    assert not (data / "a").exists()
    assert written["trouble"] == (
        "the folder cannot be read: change its permissions, and what is in it is written"
    )


def test_credentials_are_renewed_while_what_was_written_is_uploaded(
    keeper: Keeper, bucket: Buckets
) -> None:
    held = threading.Event()
    with holding(bucket.address, held) as address, ThreadPoolExecutor() as threads:
        assert keeper.mount("s3://photos/d", address) == ""
        (keeper.data / "result").write_bytes(b"result")
        held.set()
        writing = threads.submit(keeper.ask, "write_back")
        until(lambda: "PUT /photos/d/result" in bucket.asked)
        renewing = threads.submit(keeper.mount, "s3://photos/d", address)
        try:
            assert renewing.result(PATIENCE) == ""
            assert not writing.done()
        finally:
            held.clear()
        assert writing.result()["volumes"][0]["left"] == []


def test_a_keeper_without_an_agent_ends_though_its_bucket_stands_still(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first", "d/replaced": b"former"})
    held = threading.Event()
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace, let_wait=2, last=1) as keeper,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        (keeper.data / "result").write_bytes(b"result")
        (tmp_path / "new").write_bytes(b"newer")
        (tmp_path / "new").replace(keeper.data / "replaced")  # which nobody has read
        held.set()
        keeper.end()
        left = {each.name: each.read_bytes() for each in keeper.data.iterdir()}
        assert left == {"replaced": b"newer", "result": b"result"}


def test_what_was_written_is_removed_from_the_bucket_also_after_it_is_listed_again(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    (keeper.data / "step-1").write_bytes(b"1")
    keeper.ask("write_back")
    assert keeper.ask("refresh", path=str(keeper.data)) == {"trouble": ""}
    (keeper.data / "step-1").unlink()
    (keeper.data / "a").unlink()
    keeper.ask("write_back")
    assert bucket.names() == ["d/a"]  # which was there before


def test_links_are_said_to_stay_here_once_and_are_not_left(keeper: Keeper, bucket: Buckets) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    (keeper.data / "steps").mkdir()
    (keeper.data / "steps/1").write_bytes(b"1")
    (keeper.data / "latest").symlink_to("steps")
    (keeper.data / "steps/last").symlink_to("1")
    # The node writes back after each run, too, which no notebook hears of.
    assert keeper.ask("write_back", quietly=True)["volumes"][0]["trouble"] == ""
    [written] = keeper.ask("write_back")["volumes"]
    assert (written["files"], written["left"]) == (1, [])
    assert written["trouble"] == (
        "symbolic links are not written to s3://photos/d, which cannot have any: "
        f"{keeper.data}/latest and 1 more"
    )
    assert keeper.ask("write_back")["volumes"][0]["trouble"] == ""
    keeper.end()
    assert not keeper.data.exists()  # or no volume could be made there again


def test_names_that_no_disk_has_and_what_stands_for_folders(
    keeper: Keeper, bucket: Buckets
) -> None:
    # Consoles make empty files of such names, which stand for folders.
    folders = {"d/made/": b"", "d/made/in/": b"", "d/made/in/x": b"1", "d/later/": b""}
    bucket.put({**folders, "d/empty": b"", "d/a": b"file", "d/a/b": b"2", f"d/{'n' * 256}": b"3"})
    assert keeper.mount("s3://photos/d") == ""
    assert keeper.notes == [
        f"{keeper.data} lacks a/b and 1 more of s3://photos/d: no disk has such a name, or has it "
        "beside the others"
    ]
    files = {str(each.relative_to(keeper.data)) for each in keeper.data.rglob("[!.]*")}
    assert files == {"a", "empty", "made", "made/in", "made/in/x"}
    assert (keeper.data / "made/in/x").read_bytes() == b"1"
    (keeper.data / "later").mkdir()
    (keeper.data / "later/y").write_bytes(b"4")
    keeper.ask("write_back")
    assert bucket.get("d/later/y") == b"4"
    bucket.put({"e//x": b"1"})
    assert "has a file or folder that no volume can have, `e//`: rename it" in keeper.mount(
        "s3://photos/e", path=f"{keeper.data}-2"
    )


@pytest.mark.parametrize("read_only", [True, False])
def test_what_a_killed_keeper_leaves(
    read_only: bool, bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first", "d/b": b"second"})
    with keeping(tmp_path / "data", bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d", read_only=read_only) == ""
        assert (keeper.data / "b").read_bytes() == b"second"
        keeper.process.kill()
    with keeping(tmp_path / "data", bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d", read_only=read_only) == ""
        assert (keeper.data / "b").read_bytes() == b"second"
    assert [each.name for each in tmp_path.rglob("*")] == ["data"]  # as it was there before


def test_hosts_that_share_a_disk_do_not_make_a_volume_of_each_other(
    keeper: Keeper, bucket: Buckets, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    assert (keeper.data / "a").read_bytes() == b"first"
    (keeper.data / "result").write_bytes(b"result")
    note = keeper.data.with_name(f".data{NOTE}")
    with keeping(keeper.data, bucket, workplace / "other", host="other") as other:
        said = other.mount("s3://photos/d")
    assert said == (
        f"{keeper.data} is a volume of {os.uname().nodename}, with which this node shares the "
        "disk: choose a path on a disk of each node's own, like /tmp/data, or remove "
        f"{note} if that has ended"
    )
    assert (keeper.data / "a").read_bytes() == b"first"
    assert (keeper.data / "result").read_bytes() == b"result"
    assert note.exists()


def test_hosts_that_share_a_disk_and_start_at_once(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({f"d/{n}": b"first" for n in range(50)})
    data = tmp_path / "data"
    with (
        keeping(data, bucket, workplace, host="one") as one,
        keeping(data, bucket, workplace / "other", host="other") as other,
        ThreadPoolExecutor() as threads,
    ):
        said = list(threads.map(lambda each: each.mount("s3://photos/d"), (one, other)))
        assert sorted("with which this node shares the disk" in each for each in said) == [
            False,
            True,
        ]
        assert "" in said
        assert {(data / f"{n}").read_bytes() for n in range(50)} == {b"first"}
    assert not data.exists()


def test_what_a_killed_keeper_had_not_written_back_is_set_aside(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first", "d/b": b"second", "d/c": b"third", "d/empty": b""})
    data, aside = tmp_path / "data", tmp_path / "data.left-1"
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        assert [(data / name).read_bytes() for name in "abc"] == [b"first", b"second", b"third"]
        (data / "a").write_bytes(b"FIRST")
        (data / "b").rename(data / "moved")
        (data / "sub").mkdir()
        (data / "sub" / "new").write_bytes(b"new")
        (data / "done").write_bytes(b"done")
        assert keeper.ask("write_back", path=str(data))["volumes"][0]["files"] == 4
        (data / "a").write_bytes(b"AGAIN")
        (data / "c").rename(data / "here")
        (data / "sub" / "newer").write_bytes(b"newer")
        keeper.process.kill()
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        [note] = keeper.notes
        assert note == (
            f"what a volume at {data} had not written back when it ended is in {aside} now: "
            "a, here and sub/newer"
        )
        assert (data / "a").read_bytes() == b"FIRST"
        assert (data / "sub" / "new").read_bytes() == b"new"
        left = {str(each.relative_to(aside)) for each in aside.rglob("*") if each.is_file()}
        assert left == {"a", "here", "sub/newer"}
        assert (aside / "a").read_bytes() == b"AGAIN"


def test_what_could_not_be_written_back_at_the_end_is_set_aside(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    data, aside = tmp_path / "data", tmp_path / "data.left-1"
    bucket.deny_writes()
    try:
        with keeping(data, bucket, workplace) as keeper:
            assert keeper.mount("s3://photos/d") == ""
            (data / "new").write_bytes(b"new")
            keeper.end()
    finally:
        bucket.allow_writes()
    assert (data / "new").read_bytes() == b"new"  # where the ranks wrote it, until there is need
    with keeping(data, bucket, workplace) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        assert keeper.notes == [
            f"what a volume at {data} had not written back when it ended is in {aside} now: new"
        ]
        assert (data / "a").read_bytes() == b"first"
        assert (aside / "new").read_bytes() == b"new"


def test_a_volume_of_another_cluster_is_left_alone(
    keeper: Keeper, bucket: Buckets, workplace: Path
) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    with keeping(keeper.data, bucket, workplace / "other") as other:
        for _ in range(2):
            said = other.mount("s3://photos/d")
            assert said == f"{keeper.data} is a volume of another cluster: choose another path"
    assert (keeper.data / "a").read_bytes() == b"first"


@contextmanager
def breaking(address: str, after: list[int]) -> Iterator[str]:
    """Give an address that leads to another one, and loses connections after so many bytes."""
    count, lock = [0], threading.Lock()

    def goes_on(size: int, is_back: bool) -> bool:
        with lock:
            count[0] += size if is_back else 0
            breaks = bool(after) and count[0] > after[0]
            if breaks:
                after.pop(0)
        return not breaks

    with forwarding(address, goes_on) as given:
        yield given
