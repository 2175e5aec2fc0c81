"""Programs of any language that open files of a bucket: what they find, and what they write."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from queue import Queue
from types import SimpleNamespace
from typing import Any, cast

import pytest

from jupyter_sky.node.volumes import keeper as keeper_module
from jupyter_sky.node.volumes.fetching import Fetcher
from jupyter_sky.node.volumes.opening import LIST
from jupyter_sky.node.volumes.tree import Tree
from jupyter_sky.node.volumes.writing import write_back
from jupyter_sky.transport.volumes.asking import ABSENT
from jupyter_sky.transport.volumes.requests import VolumeOrder
from tests.lab.buckets import Buckets
from tests.node.volumes.conftest import Keeper, holding, keeping, order_of
from tests.waiting import PATIENCE, until

_LIMITED = """
import socket
from pathlib import Path
from jupyter_sky.node.volumes.opening import watch
socket.setdefaulttimeout(0.2)
watch(Path({folder!r}))
print(open({file!r}).read(), end="")
"""

LARGE = bytes(range(256)) * 80_000  # more than is fetched at a time


def test_a_file_whose_server_stands_still_is_empty_and_not_zeros(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/small": b"x" * 10_000, "d/large": LARGE})
    held = threading.Event()
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace, let_wait=2) as keeper,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        held.set()
        for name in ("small", "large"):
            assert _cat(keeper.data / name).communicate()[0] == b""
            said = keeper.ask("write_back")["volumes"][0]
            assert (
                f"{name} could not be read: it could not be fetched while it was" in said["trouble"]
            )
            assert said["left"] == []
        held.clear()
        until(lambda: _cat(keeper.data / "small").communicate()[0] == b"x" * 10_000)
        until(lambda: _cat(keeper.data / "large").communicate()[0] == LARGE)


def test_a_large_file_is_opened_after_a_long_rest(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/large": LARGE})
    with keeping(tmp_path / "data", bucket, workplace, let_wait=3) as keeper:
        assert keeper.mount("s3://photos/d") == ""
        rested = time.monotonic() + 4  # longer than a program is let wait
        until(lambda: time.monotonic() > rested)
        assert _cat(keeper.data / "large").communicate()[0] == LARGE


def test_a_program_does_not_wait_for_what_is_fetched_ahead(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({f"d/{n:02}": b"x" * 10_000 for n in range(40)} | {"e/asked": b"y" * 10_000})
    held = threading.Event()
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        other = tmp_path / "other"
        assert keeper.mount("s3://photos/e", path=str(other)) == ""
        held.set()
        ahead = threads.submit(keeper.ask, "fetch", path=str(keeper.data), patterns=[])
        until(lambda: sum(bucket.reads(f"d/{n:02}") for n in range(40)) >= 16)
        assert _cat(other / "asked").communicate(timeout=20)[0] == b"y" * 10_000
        assert not ahead.done()
        held.clear()
        assert ahead.result()["trouble"] == ""


def test_a_program_waits_though_it_limits_what_its_sockets_take(
    keeper: Keeper, bucket: Buckets, tmp_path: Path
) -> None:
    bucket.put({"d/a": b"first"})
    held, keys = threading.Event(), ("url", "path", "read_only")
    with holding(bucket.address, held) as address:
        assert keeper.mount("s3://photos/d", address) == ""
        volume = {key: keeper.state()[key] for key in keys} | {"socket": keeper.socket}
        (tmp_path / LIST).write_text(json.dumps([volume]))
        held.set()
        program = _LIMITED.format(folder=str(tmp_path), file=str(keeper.data / "a"))
        reader = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE)
        until(lambda: bucket.reads("d/a"))
        with suppress(subprocess.TimeoutExpired):  # longer than its sockets take
            reader.wait(1)
        held.clear()
        assert reader.communicate()[0] == b"first"


def test_a_program_that_waits_no_longer_leaves_the_fetch_of_others(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/large": LARGE})
    held = threading.Event()
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace, let_wait=2) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        held.set()
        fetched = threads.submit(keeper.ask, "fetch", path=str(keeper.data), patterns=["large"])
        until(lambda: (keeper.data / "large").stat().st_mode & ABSENT)
        assert _cat(keeper.data / "large").communicate()[0] == b""
        held.clear()
        assert fetched.result()["trouble"] == ""
        assert (keeper.data / "large").read_bytes() == LARGE


@pytest.mark.parametrize("read_only", [True, False])
def test_files_whose_readers_were_killed_before_their_turn_are_not_written_back(
    read_only: bool, bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    names = [f"d/{number:02}" for number in range(20)]  # more than are fetched at a time
    bucket.put(dict.fromkeys(names, b"x" * 10_000))
    held, data = threading.Event(), tmp_path / "data"
    with (
        holding(bucket.address, held) as address,
        keeping(data, bucket, workplace) as keeper,
        ThreadPoolExecutor() as threads,
    ):
        assert keeper.mount("s3://photos/d", address, read_only=read_only) == ""
        held.set()
        readers = [_cat(data / name.removeprefix("d/")) for name in names]
        waits = f"BREAKING +READ +{keeper.process.pid} "
        until(lambda: len(re.findall(waits, Path("/proc/locks").read_text())) == len(names))
        until(lambda: sum(map(bucket.reads, names)) == 16)
        for reader in readers:
            reader.kill()
            reader.communicate()
        said = threads.submit(keeper.ask, "write_back")
        try:
            [written] = said.result(timeout=20)["volumes"]
            assert keeper.state()["unwritten"] == []
        finally:
            held.clear()
        assert (written["files"], written["left"], written["trouble"]) == (0, [], "")
        until(lambda: keeper.state()["fetched"] == len(names))
        assert {(data / name.removeprefix("d/")).read_bytes() for name in names} == {b"x" * 10_000}
    assert {bucket.get(name) for name in names} == {b"x" * 10_000}


def test_what_a_program_writes_where_nothing_could_be_fetched_stays(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/gone": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    bucket.client.delete_object(Bucket="photos", Key="d/gone")
    subprocess.run(["sh", "-c", f"printf result > {keeper.data}/gone"], check=True)
    assert (keeper.data / "gone").read_bytes() == b"result"
    assert keeper.ask("write_back")["volumes"][0]["files"] == 1
    assert bucket.get("d/gone") == b"result"


def test_what_is_added_to_a_file_that_could_not_be_fetched_replaces_none(
    bucket: Buckets, tmp_path: Path, workplace: Path
) -> None:
    bucket.put({"d/log": b"first\n"})
    held = threading.Event()
    with (
        holding(bucket.address, held) as address,
        keeping(tmp_path / "data", bucket, workplace, let_wait=1) as keeper,
    ):
        assert keeper.mount("s3://photos/d", address) == ""
        held.set()
        subprocess.run(["sh", "-c", f"echo second >> {keeper.data}/log"], check=True)
        held.clear()
        [said] = keeper.ask("write_back")["volumes"]
        assert said["left"] == ["log"]
        assert "what the bucket has could not be fetched: rename it" in said["trouble"]
        assert bucket.get("d/log") == b"first\n"
        (keeper.data / "log").rename(keeper.data / "log-2")
        assert keeper.ask("write_back")["volumes"][0]["left"] == []
        assert bucket.get("d/log-2") == b"second\n"


def test_a_file_that_is_moved_out_before_it_is_read_has_its_content(
    keeper: Keeper, bucket: Buckets, tmp_path: Path
) -> None:
    bucket.put({"d/a": b"first", "d/b": b"second", "d/sub/c": b"third"})
    assert keeper.mount("s3://photos/d") == ""
    for name in ("a", "sub"):
        (keeper.data / name).rename(tmp_path / name)
    (keeper.data / "b").rename(keeper.data / "moved")
    keeper.end()  # the agent was killed
    assert (tmp_path / "a").read_bytes() == b"first"
    assert (tmp_path / "sub" / "c").read_bytes() == b"third"
    assert bucket.get("d/moved") == b"second"
    assert not keeper.data.exists()


def test_what_was_moved_stays_moved_when_the_bucket_is_listed_again(
    keeper: Keeper, bucket: Buckets
) -> None:
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    (keeper.data / "a").rename(keeper.data / "moved")
    assert keeper.state()["unwritten"] == ["moved"]
    assert keeper.ask("refresh", path=str(keeper.data)) == {"trouble": ""}
    assert (keeper.data / "moved").read_bytes() == b"first"


def test_a_change_of_the_same_size_right_after_a_file_is_fetched_shows_in_its_time(
    keeper: Keeper, bucket: Buckets
) -> None:
    # Many file systems tell times apart by a few milliseconds.
    bucket.put({"d/a": b"first"})
    assert keeper.mount("s3://photos/d") == ""
    assert (keeper.data / "a").read_bytes() == b"first"
    assert (keeper.data / "a").stat().st_mtime_ns < time.time_ns() - 500_000_000


def test_what_is_written_while_room_is_made_stays(tmp_path: Path) -> None:
    (tmp_path / "shared").mkdir()
    (tmp_path / "shared" / "a").write_bytes(b"first")
    data, writes = tmp_path / "data", [False]

    def take(fd: int) -> None:
        if writes[0]:  # the moment before nobody can open it any more
            (data / "a").write_bytes(b"FIRST")

    leases = SimpleNamespace(take=take, release=lambda fd: None, is_asked_for=lambda fd: False)
    order = cast(VolumeOrder, order_of(f"file://{tmp_path}/shared", data, ""))
    tree = Tree(order, cast(Any, leases), "")
    tree.make()
    assert Fetcher().fetch(tree, tree.entries["a"]) == ""
    writes[0] = True
    tree.drop(0)
    assert (data / "a").read_bytes() == b"FIRST"
    assert tree.changed() == ["a"]


def test_what_has_made_room_before_its_turn_is_not_written_as_zeros(tmp_path: Path) -> None:
    shared, data = tmp_path / "shared", tmp_path / "data"
    shared.mkdir()
    leases = SimpleNamespace(
        take=lambda fd: None, release=lambda fd: None, is_asked_for=lambda fd: False
    )
    tree = Tree(cast(VolumeOrder, order_of(f"file://{shared}", data, "")), cast(Any, leases), "")
    tree.make()
    (data / "a").write_bytes(b"result")
    fetcher = Fetcher()

    class Late(ThreadPoolExecutor):
        def map(self, *what: Any, **options: Any) -> Any:
            with ThreadPoolExecutor() as workers:  # beside it, as by `sky.save`
                assert write_back(tree, fetcher, workers, False, ["a"])["files"] == 1
            tree.drop(0)
            assert (data / "a").read_bytes() == bytes(6)
            return super().map(*what, **options)

    with Late() as workers:
        assert write_back(tree, fetcher, workers, False)["left"] == []
    assert (shared / "a").read_bytes() == b"result"


def test_volumes_that_are_full_at_the_same_time_make_room(tmp_path: Path) -> None:
    both, mounted = threading.Barrier(2), threading.Event()

    def meet(fd: int) -> None:
        if mounted.is_set():
            both.wait(PATIENCE)

    leases = SimpleNamespace(take=meet, release=meet, is_asked_for=lambda fd: False)
    kept = keeper_module.Keeper("", cast(Any, leases))
    paths = [tmp_path / name for name in ("first", "second")]
    orders = []
    for path in paths:
        (tmp_path / f"{path.name}-shared").mkdir()
        (tmp_path / f"{path.name}-shared" / "a").write_bytes(b"content")
        order = order_of(f"file://{path}-shared", path, "")
        orders.append(cast(VolumeOrder, {**order, "limit": 1}))
    assert kept.mount(orders)["trouble"] == ""
    mounted.set()
    troubles = Queue[str]()
    for path in paths:
        fetch = partial(kept.fetch_file, str(path), "a")
        threading.Thread(target=lambda fetch=fetch: troubles.put(fetch()), daemon=True).start()
    assert [troubles.get(timeout=PATIENCE) for _ in paths] == ["", ""]
    assert [each["here"] for each in kept.answer({"op": "state"})["volumes"]] == [0, 0]


def _cat(path: Path) -> subprocess.Popen[bytes]:
    return subprocess.Popen(["cat", os.fspath(path)], stdout=subprocess.PIPE)
